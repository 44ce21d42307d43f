//! Masters that the user's own ssh has made: how `ls`, `check` and `close` find them and act on them.

use std::ffi::OsStr;
use std::sync::Arc;

use trunkline::config::{Resolver, World};
use trunkline::openssh::{Master, MasterState, find_masters};
use trunkline_daemon::protocol::{HostReport, HostRequest};
use trunkline_daemon::reports;

use crate::backend::place;

/// A master and what has become of it.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) master: Master,
    pub(crate) state: MasterState,
}

impl Found {
    /// As `ls` shows it.
    pub(crate) fn report(&self) -> HostReport {
        let master = reports::master(&self.master, &self.state);
        let file = self.master.path.file_name().unwrap_or_default();
        HostReport {
            name: self
                .master
                .host
                .clone()
                .unwrap_or_else(|| file.to_string_lossy().into_owned()),
            address: master.peer.clone().unwrap_or_default(),
            transport: "openssh".into(),
            pinned: false,
            sharing: String::new(),
            mux_sockets: Vec::new(),
            connections: Vec::new(),
            master: Some(master),
        }
    }

    /// Ends it: when it is idle, or with its sessions. Returns whether it was there to end.
    pub(crate) async fn close(&self, at_once: bool, world: &World) -> anyhow::Result<bool> {
        if let MasterState::Alive(known) = &self.state
            && let Some(clients @ 1..) = known.clients
            && !at_once
        {
            eprintln!(
                "trunkline: {} stays open until its {clients} sessions end; use --now to end them at once",
                self.master.path.display()
            );
            return Ok(false);
        }
        Ok(self.master.exit(world).await?)
    }
}

/// Every socket that a ControlPath can mean, but those that the daemon serves or keeps.
pub(crate) async fn all(config_file: Option<&OsStr>) -> anyhow::Result<Vec<Found>> {
    let place = place()?;
    let mut masters = find_masters(&World::current()?, config_file)?;
    masters.retain(|master| {
        let folder = master.path.parent();
        folder != Some(&place.mux()) && folder != Some(&place.masters())
    });
    let looked_at = masters.into_iter().map(async |master| Found {
        state: master.state().await,
        master,
    });
    Ok(futures_util::future::join_all(looked_at).await)
}

/// The master that a host's ControlPath means, where it is not ours and where there is a socket.
pub(crate) async fn of_host(request: &HostRequest) -> anyhow::Result<Option<Found>> {
    let mut asked =
        trunkline::config::Request::new(request.destination.clone(), Arc::new(request.world.clone()));
    asked.ssh_args.clone_from(&request.ssh_args);
    let config = Resolver::new().resolve(&asked).await?;
    let Some(master) = Master::of_user(&config, &place()?.mux()) else {
        return Ok(None);
    };
    let state = master.state().await;
    Ok((state != MasterState::Missing).then_some(Found { master, state }))
}
