//! The program `trunkline`.

fn main() -> std::process::ExitCode {
    trunkline_cli::main()
}
