//! Errors are of the kind of whoever is to blame, whatever found them.

use std::io;
use std::time::Duration;

use trunkline::config::ConfigError;
use trunkline::hosts::InventoryError;
use trunkline::known_hosts::KnownHostsError;
use trunkline::{Absence, Error, ErrorKind, Invalid};

#[test]
fn a_file_of_this_machine_that_cannot_be_read_is_no_mistake_in_the_configuration() {
    let denied = || io::Error::from_raw_os_error(13);
    let known_hosts = KnownHostsError::Io {
        action: "read",
        file: "/etc/ssh/revoked".into(),
        source: denied(),
    };
    let inventory = InventoryError::File {
        file: "/etc/ansible/hosts".into(),
        error: denied(),
    };
    for error in [Error::from(known_hosts), Error::from(inventory)] {
        assert_eq!(
            (error.kind(), error.errno()),
            (ErrorKind::Local, Some(13)),
            "{error}"
        );
    }
    let pattern = InventoryError::Pattern {
        pattern: "~(".into(),
        problem: "it is no regular expression".into(),
    };
    assert_eq!(Error::from(pattern).kind(), ErrorKind::Configuration);
}

#[test]
fn the_resolvers_failures_are_told_from_what_is_wrong_in_ssh_config() {
    let kind = |error: ConfigError| Error::from(error).kind();
    let program = || "/usr/bin/ssh".into();
    let reason = || "out of memory".to_owned();
    assert_eq!(
        kind(ConfigError::TimedOut(Duration::from_secs(60))),
        ErrorKind::Timeout
    );
    assert_eq!(
        kind(ConfigError::Start {
            program: program(),
            reason: reason()
        }),
        ErrorKind::Local
    );
    assert_eq!(kind(ConfigError::Refused(reason())), ErrorKind::Configuration);
}

#[test]
fn what_is_in_use_may_pass_and_what_the_user_said_does_not() {
    assert!(Error::Busy("the socket is in use".into()).may_pass());
    let not_connected = Error::NotConnected {
        host: "db1".into(),
        why: Absence::Unmade,
    };
    assert_eq!(not_connected.kind(), ErrorKind::Network);
    let denied = Error::Denied {
        host: "db1".into(),
        why: "was refused",
    };
    for error in [
        Error::Cancelled("its results are not kept"),
        Error::Invalid(Invalid::NoHost),
        denied,
    ] {
        assert!(!error.may_pass(), "{error}");
    }
}
