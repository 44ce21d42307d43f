//! The protection of this process's memory.

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

/// Keeps this process's memory, in which there are keys or passwords, from others of the same user: no debugger attaches,
/// /proc/PID/mem and the like are root's, and no core file is written. A program that it executes is not affected.
///
/// # Errors
/// The system's.
pub fn keep_private() -> std::io::Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(())
}
