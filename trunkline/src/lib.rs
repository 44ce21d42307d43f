//! The trunkline SSH engine: connections, pool, sessions, forwarding.
