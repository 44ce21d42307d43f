//! Links the program `trunkline` statically, so that the dynamic loader costs no command anything: it is what `-C
//! target-feature=+crt-static` does, for this program alone. That flag is for all that cargo builds, and `trunklined` has to
//! stay dynamic: glibc loads what nsswitch.conf names for names of hosts and users.
//!
//! If there is no static libc to link (Debian's libc6-dev has it), the program is linked as any other.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if let Some(directory) = static_libraries() {
        println!("cargo::rustc-link-arg-bins=-static-pie");
        println!("cargo::rustc-link-arg-bins=-L{}", directory.display());
    }
}

/// A directory in which the linker finds the C libraries that rustc names, as static ones. rustc asks for dynamic ones,
/// which are looked for under both names; the directory comes before the system's.
fn static_libraries() -> Option<PathBuf> {
    let target = env::var("TARGET").ok()?;
    let features = env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    if env::var("CARGO_CFG_TARGET_OS").ok()? != "linux"
        || env::var("CARGO_CFG_TARGET_ENV").ok()? != "gnu"
        // The C compiler of another target is the user's to name, and so is the kind of linking.
        || env::var("HOST").ok()? != target
        || features.split(',').any(|feature| feature == "crt-static")
    {
        return None;
    }
    let [eh, gcc] = [library("libgcc_eh.a")?, library("libgcc.a")?];
    let directory = PathBuf::from(env::var_os("OUT_DIR")?);
    for name in ["util", "rt", "pthread", "m", "dl", "c"] {
        let archive = library(&format!("lib{name}.a"))?;
        // What libc's archive needs of the compiler's, and they of it.
        let script = format!(
            "GROUP({} {} {})\n",
            archive.display(),
            eh.display(),
            gcc.display()
        );
        fs::write(directory.join(format!("lib{name}.a")), script).ok()?;
    }
    fs::write(directory.join("libgcc_s.a"), format!("INPUT({})\n", eh.display())).ok()?;
    Some(directory)
}

/// Returns the directory of a library of the C compiler.
fn library(name: &str) -> Option<PathBuf> {
    let found = Command::new("cc")
        .arg(format!("-print-file-name={name}"))
        .output()
        .ok()?;
    let path = PathBuf::from(String::from_utf8(found.stdout).ok()?.trim());
    // A name that it does not know comes back as it is.
    (path != Path::new(name) && path.is_file()).then_some(path)
}
