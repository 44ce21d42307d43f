//! The program `trunkline-watch`.

fn main() -> std::process::ExitCode {
    trunkline_watch::main()
}
