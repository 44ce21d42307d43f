//! The address of a server, and the files with which a client connects to it.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::{Error, HostEntry, KeyPair, KeyType, write_ssh_config};

/// A server's address and directory, with a key for the client, `known_hosts` and a file for `ssh -F`.
#[derive(Debug)]
pub struct Identity {
    addr: SocketAddr,
    client_key: KeyPair,
    dir: TempDir,
    may_ask: bool,
}

impl Identity {
    /// Listens on a port of its own, and makes an identity with this alias.
    pub(super) fn listen(alias: &str, may_ask: bool) -> Result<(TcpListener, Self), Error> {
        let dir = tempfile::Builder::new()
            .prefix(&format!("trunkline-{alias}-"))
            .tempdir()?;
        let client_key = KeyPair::generate(dir.path(), "client_key", KeyType::Ed25519)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let addr = listener.local_addr()?;
        let identity = Self {
            addr,
            client_key,
            dir,
            may_ask,
        };
        write_ssh_config(&identity.ssh_config(), [identity.host_entry(alias)])?;
        Ok((listener, identity))
    }

    /// Writes `known_hosts` with the host key, which is given as in a `.pub` file.
    pub(super) fn trust(&self, host_key: &str) -> Result<(), Error> {
        let (ip, port) = (self.addr.ip(), self.addr.port());
        Ok(fs::write(
            self.known_hosts(),
            format!("[{ip}]:{port} {host_key}\n"),
        )?)
    }

    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the address on which it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns a `known_hosts` file with the server's Ed25519 host key.
    pub fn known_hosts(&self) -> PathBuf {
        self.dir().join("known_hosts")
    }

    /// Returns a complete file for `ssh -F`, with the alias `raw` or `russh`.
    pub fn ssh_config(&self) -> PathBuf {
        self.dir().join("ssh_config")
    }

    /// Returns a key for the client to use. [`Wire::authenticate`](super::Wire::authenticate) accepts any key.
    pub fn client_key(&self) -> &KeyPair {
        &self.client_key
    }

    /// Returns the `Host` block for this server.
    pub fn host_entry(&self, alias: &str) -> HostEntry {
        HostEntry {
            alias: alias.to_owned(),
            addr: self.addr,
            user: "tester".to_owned(),
            identities: vec![self.client_key.private_path().to_owned()],
            known_hosts: self.known_hosts(),
            may_ask: self.may_ask,
            extra: Vec::new(),
        }
    }
}
