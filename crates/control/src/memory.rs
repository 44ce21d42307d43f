//! The protection of this process's memory.

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

/// Protects this process's memory, which has keys or passwords, from other processes of the same user: no debugger can
/// attach, /proc/PID/mem and similar files belong to root, and no core file is written. Programs that it executes are
/// not affected.
///
/// # Errors
/// The system's.
pub fn keep_private() -> std::io::Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(())
}
