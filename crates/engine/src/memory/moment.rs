//! Times as stored in the file of host memory.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(super) fn milliseconds(moment: SystemTime) -> i64 {
    let since = moment.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

pub(super) fn moment(milliseconds: i64) -> SystemTime {
    UNIX_EPOCH
        .checked_add(Duration::from_millis(milliseconds.unsigned_abs()))
        .unwrap_or(UNIX_EPOCH)
}
