//! The system's figures about this process.

/// Returns the memory in use in bytes, from proc(5)'s VmRSS.
pub(crate) fn memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

pub(crate) fn descriptors() -> usize {
    // One of them reads the directory.
    std::fs::read_dir("/proc/self/fd").map_or(0, |directory| directory.count().saturating_sub(1))
}

/// Returns the maximum number of descriptors.
pub(crate) fn descriptor_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_tells_of_memory_and_descriptors() {
        assert!(memory().is_some_and(|bytes| bytes > 100 * 1024));
        let open = descriptors();
        assert!(open > 2 && descriptor_limit().is_none_or(|limit| limit >= open as u64));
    }
}
