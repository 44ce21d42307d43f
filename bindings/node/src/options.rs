//! What JavaScript asks for, as `lib/options.js` has checked it.

use std::path::PathBuf;
use std::time::Duration;

use napi::bindgen_prelude::Uint8Array;
use napi_derive::napi;
use trunkline::config::{AddressFamily, ForwardAgent, HostConfig};
use trunkline::{Command, Pty, TerminalSize};

use crate::fault::Fault;

/// How a client connects.
#[napi(object)]
pub struct ConnectOptions {
    /// The server's name or address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The user there.
    pub username: String,
    /// The user's password.
    pub password: Option<String>,
    /// The content of a private key file.
    pub private_key: Option<Uint8Array>,
    /// What opens it.
    pub passphrase: Option<String>,
    /// The agent's socket.
    pub agent: Option<String>,
    /// Whether sessions may be lent the agent.
    pub agent_forward: bool,
    /// Who judges the host key: "any" (nobody), "files" (known_hosts, and unknown hosts pass), "program".
    pub host_keys: String,
    /// known_hosts files, for "files".
    pub known_hosts: Vec<String>,
    /// Milliseconds between keep-alive requests; 0 for none.
    pub keepalive_interval: f64,
    /// Requests without an answer after which the connection is given up.
    pub keepalive_count_max: u32,
    /// Milliseconds until it must be ready; 0 for no limit.
    pub ready_timeout: f64,
    /// Whether the program answers keyboard-interactive questions.
    pub try_keyboard: bool,
    /// The address to connect from.
    pub local_address: Option<String>,
    /// 4 or 6 for one address family.
    pub family: Option<u32>,
    /// Algorithms, best first; none for the engine's own order.
    pub kex: Option<Vec<String>>,
    /// As `kex`.
    pub server_host_key: Option<Vec<String>>,
    /// As `kex`.
    pub cipher: Option<Vec<String>>,
    /// As `kex`.
    pub hmac: Option<Vec<String>>,
    /// Whether payloads are to be compressed.
    pub compress: bool,
    /// Whether JavaScript carries the bytes: the stream is the client's number plus one.
    pub over_stream: bool,
}

impl ConnectOptions {
    /// The engine's configuration for it.
    ///
    /// # Errors
    /// A host without a name, a user or a port.
    pub(crate) fn host_config(&self) -> Result<HostConfig, Fault> {
        let mut config = HostConfig::explicit(&self.host, self.port, &self.username)
            .map_err(|error| Fault::usage(&error.to_string()))?;
        config.server_alive_interval = milliseconds(self.keepalive_interval);
        config.server_alive_count_max = self.keepalive_count_max;
        // Each of the engine's steps is bounded by it, and the whole by the client.
        config.connect_timeout = self.ready_timeout();
        config.identity_agent = self.agent.as_ref().map(PathBuf::from);
        if self.agent_forward {
            config.forward_agent = ForwardAgent::Yes;
        }
        config.password_authentication = self.password.is_some();
        config.kbd_interactive_authentication = self.try_keyboard;
        // A wrong password is as wrong the next time.
        config.number_of_password_prompts = 1;
        config.user_known_hosts_files = self.known_hosts.iter().map(PathBuf::from).collect();
        config.bind_address.clone_from(&self.local_address);
        config.address_family = match self.family {
            Some(4) => AddressFamily::Inet,
            Some(6) => AddressFamily::Inet6,
            _ => AddressFamily::Any,
        };
        config.compression = self.compress;
        let lists = [
            (&self.kex, &mut config.kex_algorithms),
            (&self.server_host_key, &mut config.host_key_algorithms),
            (&self.cipher, &mut config.ciphers),
            (&self.hmac, &mut config.macs),
        ];
        for (chosen, list) in lists {
            if let Some(chosen) = chosen {
                list.clone_from(chosen);
            }
        }
        config.host_key_order_is_free = self.server_host_key.is_none();
        if self.host_keys == "program" {
            // ssh2's verifiers compare plain keys; a certificate would be another blob each time it is renewed.
            config
                .host_key_algorithms
                .retain(|name| !name.contains("-cert-v"));
        }
        Ok(config)
    }

    /// The time until the client must be ready.
    pub(crate) fn ready_timeout(&self) -> Option<Duration> {
        milliseconds(self.ready_timeout)
    }
}

/// JavaScript's number of milliseconds; 0, and what is no number, for none.
fn milliseconds(value: f64) -> Option<Duration> {
    // NaN and negative numbers become 0.
    let whole = value as u64;
    (whole > 0).then(|| Duration::from_millis(whole))
}

/// What to run in a session.
#[napi(object)]
pub struct SessionOptions {
    /// "exec", "shell" or "subsystem".
    pub kind: String,
    /// The command, or the subsystem's name.
    pub text: String,
    /// Names and values.
    pub env: Vec<Vec<String>>,
    /// A terminal.
    pub pty: Option<PtyOptions>,
}

/// A terminal for a session.
#[napi(object)]
pub struct PtyOptions {
    /// TERM.
    pub term: String,
    /// Columns.
    pub cols: u32,
    /// Rows.
    pub rows: u32,
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// Modes, encoded as in RFC 4254 section 8.
    pub modes: Uint8Array,
}

impl SessionOptions {
    pub(crate) fn command(&self) -> Command {
        let mut command = match self.kind.as_str() {
            "shell" => Command::shell(),
            "subsystem" => Command::subsystem(self.text.as_str()),
            _ => Command::exec(self.text.as_bytes()),
        };
        for pair in &self.env {
            if let [name, value] = &pair[..] {
                command = command.env(name.as_str(), value.as_bytes());
            }
        }
        if let Some(pty) = &self.pty {
            command = command.pty(Pty {
                term: pty.term.clone(),
                size: TerminalSize {
                    columns: pty.cols,
                    rows: pty.rows,
                    width: pty.width,
                    height: pty.height,
                },
                modes: pty.modes.to_vec(),
            });
        }
        command
    }
}
