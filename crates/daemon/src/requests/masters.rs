//! Masters of the user's own ssh, as opposed to the daemon's: how `ls`, `check` and `close` find them and act on them.

use std::ffi::OsStr;

use futures_util::future::join_all;
use trunkline::config::{HostConfig, World};
use trunkline::openssh::{Master, MasterState, find_masters};
use trunkline::{Engine, Error};

use crate::place::Place;
use crate::protocol::{HostReport, MasterAction, MasterFound, MastersOf, Transport};
use crate::reports::{self, engine_request};

/// Finds masters, and acts on them.
pub(crate) async fn serve(
    engine: &Engine,
    place: &Place,
    of: &MastersOf,
    action: MasterAction,
) -> Result<Vec<MasterFound>, Error> {
    let (masters, world) = match of {
        MastersOf::All { world, config_file } => (all(place, world, config_file.as_deref())?, &**world),
        MastersOf::Host(host) => {
            let config = engine.resolve(&engine_request(host)).await?;
            (of_host(place, &config).into_iter().collect(), &host.world)
        }
    };
    let states = join_all(masters.iter().map(Master::state)).await;
    let mut found = Vec::new();
    for (master, state) in masters.into_iter().zip(states) {
        if state == MasterState::Missing {
            continue;
        }
        found.push(MasterFound {
            report: report(&master, &state),
            acted: act(&master, &state, action, world).await?,
        });
    }
    Ok(found)
}

/// Returns every socket that a ControlPath can mean, except for the daemon's.
fn all(place: &Place, world: &World, config_file: Option<&OsStr>) -> Result<Vec<Master>, Error> {
    let mut masters = find_masters(world, config_file)?;
    masters.retain(|master| {
        let directory = master.path.parent();
        directory != Some(&place.mux()) && directory != Some(&place.masters())
    });
    Ok(masters)
}

/// Returns the socket of a host's ControlPath, unless it is ours.
fn of_host(place: &Place, config: &HostConfig) -> Option<Master> {
    Master::of_user(config, &place.mux())
}

async fn act(
    master: &Master,
    state: &MasterState,
    action: MasterAction,
    world: &World,
) -> Result<bool, Error> {
    match action {
        MasterAction::Look => Ok(false),
        MasterAction::RemoveStale => master.remove_stale().await,
        MasterAction::Close { at_once } => {
            let MasterState::Alive(known) = state else {
                return Ok(false);
            };
            if known.clients.is_some_and(|clients| clients > 0) && !at_once {
                return Ok(false);
            }
            master.exit(world).await
        }
    }
}

fn report(master: &Master, state: &MasterState) -> HostReport {
    let file = master.path.file_name().unwrap_or_default();
    let name = master
        .host
        .clone()
        .unwrap_or_else(|| file.to_string_lossy().into_owned());
    let known = reports::master(master, state);
    let address = known.peer.clone().unwrap_or_default();
    HostReport {
        master: Some(known),
        ..HostReport::new(name, address, Transport::OpenSsh)
    }
}
