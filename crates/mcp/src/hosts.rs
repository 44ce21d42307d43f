//! The hosts on which an assistant works, through the daemon's connections.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OnceCell, Semaphore};
use trunkline::Interaction;
use trunkline::config::{Request, World};
use trunkline::sftp::Sftp;
use trunkline_control::client::{Client, ClientError};
use trunkline_control::protocol::{HostReport, HostRequest, Reply, Request as Asked};
use trunkline_embed::{ErrorKind, Failure, OnBehalf, Place, Preference, Starter, Way};
use trunkline_request::destination::Destination;

use crate::rules::Rules;
use crate::words::quote;

/// The known hosts, and the way to the daemon. Nothing is started before the first call.
pub(crate) struct Hosts {
    world: OnceCell<Arc<World>>,
    known: Mutex<HashMap<String, Arc<Host>>>,
}

pub(crate) struct Host {
    pub(crate) destination: Destination,
    reached: trunkline_embed::Destination,
    /// Limits concurrent work on it.
    pub(crate) at_once: Arc<Semaphore>,
    way: OnceCell<Arc<Way>>,
    sftp: tokio::sync::Mutex<Option<Sftp>>,
}

impl Hosts {
    pub(crate) fn new() -> Self {
        Self {
            world: OnceCell::new(),
            known: Mutex::default(),
        }
    }

    /// Returns this process's environment.
    ///
    /// # Errors
    /// It has no working directory.
    async fn world(&self) -> Result<&Arc<World>, Failure> {
        let current = async || {
            let world = World::current();
            let failed = |error: std::io::Error| Failure::new(ErrorKind::Local, error.to_string());
            world.map(Arc::new).map_err(failed)
        };
        self.world.get_or_try_init(current).await
    }

    /// Returns a host, without connecting.
    ///
    /// # Errors
    /// This process has no working directory.
    pub(crate) async fn host(
        &self,
        destination: &Destination,
        rules: &Rules,
        on_behalf: &OnBehalf,
    ) -> Result<Arc<Host>, Failure> {
        let world = self.world().await?.clone();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        // The rules limit how many names are remembered; an assistant that makes up names cannot exceed this.
        if known.len() > 4096 {
            known.retain(|_, host| Arc::strong_count(host) > 1);
        }
        let ssh_args = ssh_args(rules);
        // Hosts that were found with another configuration are forgotten.
        known.retain(|_, host| host.reached.request.ssh_args == ssh_args);
        let host = known.entry(destination.as_hop()).or_insert_with(|| {
            let mut request = Request::new(destination.clone(), world);
            request.ssh_args = ssh_args;
            let reached = trunkline_embed::Destination {
                request,
                preference: Preference::Daemon(Starter::Installed),
                interaction: Interaction::none(),
                answers: false,
                on_behalf: Some(on_behalf.clone()),
            };
            Arc::new(Host {
                destination: destination.clone(),
                reached,
                at_once: Arc::new(Semaphore::new(rules.limits.at_once.max(1))),
                way: OnceCell::new(),
                sftp: tokio::sync::Mutex::new(None),
            })
        });
        Ok(host.clone())
    }

    /// Returns the daemon's answer. Starts a daemon only if `starts`.
    async fn ask(&self, request: Asked, starts: bool) -> Result<Reply, Failure> {
        let starter = Starter::Installed;
        let mut client = Client::connect(&self.place().await?, starts.then_some(&starter)).await?;
        client.send(&request).await?;
        match client.next().await? {
            Reply::Failed(failure) => Err(failure),
            reply => Ok(reply),
        }
    }

    /// Returns the daemon's place.
    ///
    /// # Errors
    /// There is none.
    pub(crate) async fn place(&self) -> Result<Place, Failure> {
        let world = self.world().await?;
        let place = Place::find(|name| world.var(name).map(PathBuf::from));
        Ok(place.map_err(ClientError::from)?)
    }

    /// Returns the hosts with connections. Without a daemon there are none.
    ///
    /// # Errors
    /// The daemon cannot be asked.
    pub(crate) async fn connected_hosts(&self) -> Result<Vec<HostReport>, Failure> {
        let place = self.place().await?;
        if Client::connect_anywhere(&place).await.is_err() {
            return Ok(Vec::new());
        }
        match self.ask(Asked::List, false).await? {
            Reply::Hosts(hosts) => Ok(hosts),
            _ => Ok(Vec::new()),
        }
    }

    /// Returns the aliases of ssh_config that match a pattern.
    ///
    /// # Errors
    /// The daemon cannot be asked.
    pub(crate) async fn aliases(&self, pattern: &str, rules: &Rules) -> Result<Vec<String>, Failure> {
        let request = Asked::Aliases {
            pattern: pattern.to_owned(),
            world: (**self.world().await?).clone(),
            config_file: rules.ssh_config.clone().map(Into::into),
        };
        match self.ask(request, true).await? {
            Reply::Aliases(names) => Ok(names),
            _ => Ok(Vec::new()),
        }
    }

    /// Returns the address of a destination: `user@hostname:port`.
    ///
    /// # Errors
    /// It cannot be resolved.
    pub(crate) async fn address(&self, destination: &Destination, rules: &Rules) -> Result<String, Failure> {
        let world = (**self.world().await?).clone();
        let host = HostRequest::new(destination.clone(), ssh_args(rules), world);
        match self.ask(Asked::Explain(host), true).await? {
            Reply::Explained(explanation) => Ok(explanation.address),
            _ => Ok(destination.as_hop()),
        }
    }

    /// Returns the host name to which a destination resolves.
    ///
    /// # Errors
    /// It cannot be resolved.
    pub(crate) async fn hostname(&self, destination: &Destination, rules: &Rules) -> Result<String, Failure> {
        let address = self.address(destination, rules).await?;
        let host = address.rsplit_once(':').map_or(&*address, |(host, _)| host);
        Ok(host.rsplit_once('@').map_or(host, |(_, host)| host).to_owned())
    }
}

impl Host {
    /// Returns the way to the host.
    ///
    /// # Errors
    /// The daemon cannot be reached. Only the daemon connects: this program uses no engine of its own.
    pub(crate) async fn way(&self) -> Result<&Arc<Way>, Failure> {
        let found = async || {
            let elsewhere = async || {
                let why = "the daemon runs in another namespace than this program, where the same names may mean other hosts: \
                           start the assistant where your terminal is";
                Err(Failure::new(ErrorKind::Configuration, why))
            };
            Way::find(&self.reached, elsewhere).await.map(Arc::new)
        };
        self.way
            .get_or_try_init(found)
            .await
            .map_err(|failure| self.explain(failure))
    }

    /// Returns an SFTP session, shared by all file operations on the host.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(crate) async fn sftp(&self) -> Result<Sftp, Failure> {
        let mut sftp = self.sftp.lock().await;
        if let Some(open) = &*sftp {
            let is_over = tokio::select! {
                biased;
                _ = open.end() => true,
                () = std::future::ready(()) => false,
            };
            if !is_over {
                return Ok(open.clone());
            }
        }
        let opened = self.way().await?.sftp().await;
        let opened = opened.map_err(|failure| self.explain(failure))?;
        Ok(sftp.insert(opened).clone())
    }

    /// Adds to a failure what a user can do about it, if known.
    pub(crate) fn explain(&self, mut failure: Failure) -> Failure {
        let arguments = self.reached.request.ssh_args.iter();
        let mut warm = vec!["trunkline".to_owned(), "warm".to_owned()];
        warm.extend(arguments.map(|argument| argument.to_string_lossy().into_owned()));
        warm.push(self.destination.as_hop());
        let warm = quote(&warm);
        let advice = match failure.kind {
            ErrorKind::Authentication if self.reached.request.world.var("SSH_AUTH_SOCK").is_none() => {
                format!(
                    "SSH_AUTH_SOCK is not set for this server, so no agent was asked: run `trunkline setup mcp` in a terminal, \
                     which writes it into the client's configuration; or connect first: `{warm}`"
                )
            }
            ErrorKind::Authentication => {
                format!("nobody can be asked for a password here: connect first, in a terminal: `{warm}`")
            }
            ErrorKind::HostKey => format!("a person has to check the host's key, in a terminal: `{warm}`"),
            _ => return failure,
        };
        failure.message = format!("{}; {advice}", failure.message);
        failure
    }
}

/// Returns ssh's arguments other than the host. An assistant cannot set any of them.
fn ssh_args(rules: &Rules) -> Vec<OsString> {
    let file = rules.ssh_config.as_ref();
    file.map_or_else(Vec::new, |file| vec!["-F".into(), file.into()])
}

/// Parses a destination from an assistant: `[user@]host[:port]`, which must not be readable as an option, a jump host
/// or a URI.
///
/// # Errors
/// It is something else.
/// It is not that.
pub(crate) fn destination(name: &str) -> Result<Destination, String> {
    let wrong = || {
        let shown = trunkline_text::Printable::short_line(name, 200);
        format!("\"{shown}\" is not a host: give [user@]host[:port], as 'hosts' lists them")
    };
    let (user, rest) = match name.rsplit_once('@') {
        Some((user, rest)) => (Some(user), rest),
        None => (None, name),
    };
    let (host, port) = match (rest.strip_prefix('['), rest.split_once(':')) {
        (Some(bracketed), _) => {
            let (address, port) = bracketed.split_once(']').ok_or_else(wrong)?;
            match port {
                "" => (address, None),
                port => (address, Some(port.strip_prefix(':').ok_or_else(wrong)?)),
            }
        }
        // Several colons: an address without a port.
        (None, Some((_, port))) if port.contains(':') => (rest, None),
        (None, Some((host, port))) => (host, Some(port)),
        (None, None) => (rest, None),
    };
    let is_name = |text: &str, more: &str| {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || more.contains(c);
        !text.is_empty() && text.len() <= 255 && !text.starts_with('-') && text.chars().all(is_allowed)
    };
    if !is_name(host, "._-:") || user.is_some_and(|user| !is_name(user, "._-")) {
        return Err(wrong());
    }
    let port = port.map(str::parse).transpose().map_err(|_| wrong())?;
    Destination::new(user, host, port).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_host_and_nothing_else() {
        let parsed = |name: &str| {
            let found = destination(name).unwrap();
            (found.user, found.host, found.port)
        };
        assert_eq!(parsed("web1"), (None, "web1".into(), None));
        assert_eq!(parsed("jo@web1:22"), (Some("jo".into()), "web1".into(), Some(22)));
        assert_eq!(parsed("::1"), (None, "::1".into(), None));
        assert_eq!(parsed("jo@[::1]:22"), (Some("jo".into()), "::1".into(), Some(22)));
        for wrong in [
            "",
            "-oProxyCommand=id",
            "jo@-x",
            "-x@web1",
            "ssh://web1",
            "web1,web2",
            "web1 web2",
            "web1;id",
            "a@b@c",
            "web%1",
            "web1:0",
            "web1:99999",
            "web1:x",
            "[::1",
            "[::1]x",
            "web1\n",
            "$(id)",
            "web*",
            "@web1",
            "wéb",
        ] {
            assert!(destination(wrong).is_err(), "{wrong:?}");
        }
    }
}
