//! The world that the hosts of a program share.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use trunkline::config::World;

/// The world in use that was seen last: thousands of hosts share one.
#[derive(Debug, Default)]
pub struct Worlds(Mutex<Weak<World>>);

impl Worlds {
    /// Returns `world`, or an equal one that is in use.
    pub fn share(&self, world: World) -> Arc<World> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(same) = last.upgrade().filter(|last| **last == world) {
            return same;
        }
        let world = Arc::new(world);
        *last = Arc::downgrade(&world);
        world
    }
}
