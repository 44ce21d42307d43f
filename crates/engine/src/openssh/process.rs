//! Facts from /proc about a master's process.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Returns the peer of a process's TCP connection: the first, if it has several.
pub(super) fn peer(pid: u32) -> Option<String> {
    let inodes: Vec<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .ok()?
        .flatten()
        .filter_map(|entry| {
            let target = std::fs::read_link(entry.path()).ok()?;
            let inode = target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
            Some(inode.to_owned())
        })
        .collect();
    ["tcp", "tcp6"].into_iter().find_map(|table| {
        // The process's own table: it may be in another network namespace.
        let table = std::fs::read_to_string(format!("/proc/{pid}/net/{table}")).ok()?;
        table.lines().skip(1).find_map(|line| peer_in(line, &inodes))
    })
}

/// Parses proc(5), /proc/net/tcp: number, local and remote address, state (1 is established), …, the inode tenth.
fn peer_in(line: &str, inodes: &[String]) -> Option<String> {
    let mut words = line.split_ascii_whitespace();
    let remote = words.nth(2)?;
    let established = words.next()? == "01";
    let inode = words.nth(5)?;
    if !established || !inodes.iter().any(|ours| ours == inode) {
        return None;
    }
    let (address, port) = remote.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    Some(SocketAddr::new(address_of(address)?, port).to_string())
}

/// Parses an address as the kernel prints it: 32-bit words in the machine's own order.
fn address_of(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        u32::from_str_radix(hex.get(at..at + 8)?, 16)
            .ok()
            .map(u32::to_ne_bytes)
    };
    match hex.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let mut bytes = [0; 16];
            bytes.copy_from_slice(&words.concat());
            Some(IpAddr::from(Ipv6Addr::from(bytes)).to_canonical())
        }
        _ => None,
    }
}

/// Counts the clients connected to a listening socket: the kernel lists the listener's end of each under the bound
/// name. ssh binds a name with a dot and 16 characters appended and links it to the real one (mux.c,
/// `muxserver_listen`).
pub(super) fn clients(path: &Path) -> Option<usize> {
    let table = std::fs::read("/proc/net/unix").ok()?;
    let connected = table
        .split(|byte| *byte == b'\n')
        .filter(|line| is_connected(line, path.as_os_str().as_bytes()))
        .count();
    Some(connected)
}

/// Parses proc(5), /proc/net/unix: number, references, protocol, flags, type, state (3 is connected), inode, path.
fn is_connected(line: &[u8], path: &[u8]) -> bool {
    let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    let connected = words.nth(5) == Some(b"03");
    let bound = words.nth(1).unwrap_or_default();
    let suffix = bound.strip_prefix(path);
    connected && suffix.is_some_and(|suffix| suffix.is_empty() || suffix.len() == 17 && suffix[0] == b'.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_established_connection_of_the_process_is_its_peer() {
        let inodes = ["4711".to_owned()];
        let line =
            "   1: 0100007F:9C40 0100007F:0016 01 00000000:00000000 00:00000000 00000000  1000  0 4711 1 x";
        assert_eq!(peer_in(line, &inodes).as_deref(), Some("127.0.0.1:22"));
        assert_eq!(peer_in(&line.replace(" 01 ", " 06 "), &inodes), None);
        assert_eq!(peer_in(line, &["4712".to_owned()]), None);
        assert_eq!(peer_in("garbage", &inodes), None);
        assert_eq!(address_of("no digits"), None);
        assert_eq!(
            address_of("B80D0120000000000000000001000000"),
            Some("2001:db8::1".parse().unwrap())
        );
    }

    #[test]
    fn only_the_masters_ends_of_connections_count() {
        let line = |state: &str, name: &str| {
            format!("0000000000000000: 00000003 00000000 00000000 0001 {state} 4711 {name}").into_bytes()
        };
        assert!(is_connected(&line("03", "/s.0123456789abcdef"), b"/s"));
        assert!(is_connected(&line("03", "/s"), b"/s"));
        assert!(!is_connected(&line("01", "/s"), b"/s"));
        assert!(!is_connected(&line("03", "/s2"), b"/s"));
        assert!(!is_connected(b"", b"/s"));
    }
}
