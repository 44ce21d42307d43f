//! Failures: what programs tell them apart by.

use bytes::Bytes;
use trunkline_embed::{Cause, ErrorKind, Execution, Output, Route, Way};
use trunkline_testkit::Sshd;

use crate::{each_way, exec};

async fn failure(way: &Way) -> trunkline_embed::Failure {
    way.connect().await.unwrap_err()
}

#[tokio::test]
async fn a_server_that_lets_nobody_in_says_what_it_would_take() {
    let sshd = Sshd::start_default().unwrap();
    each_way(&sshd, &["-o", "PubkeyAuthentication=no"], async |way| {
        let failure = failure(&way).await;
        assert_eq!(failure.kind, ErrorKind::Authentication);
        let Cause::Authentication { allowed, partial } = failure.cause else {
            panic!("{failure:?}");
        };
        assert!(allowed.contains(&"publickey".to_owned()), "{allowed:?}");
        assert!(!partial);
    })
    .await;
}

#[tokio::test]
async fn a_port_that_nobody_listens_on_has_its_address_and_errno() {
    let mut sshd = Sshd::start_default().unwrap();
    sshd.stop();
    each_way(&sshd, &[], async |way| {
        let failure = failure(&way).await;
        assert_eq!(
            (failure.kind, failure.execution),
            (ErrorKind::Network, Execution::DidNotStart)
        );
        let address = Some(sshd.addr());
        assert_eq!(failure.cause, Cause::Network { address });
        let refused = std::io::Error::from_raw_os_error(failure.errno.unwrap());
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    })
    .await;
}

#[tokio::test]
async fn a_name_that_nobody_has_is_a_lookup() {
    let sshd = Sshd::start_default().unwrap();
    each_way(&sshd, &["-o", "HostName=nowhere.invalid"], async |way| {
        let failure = failure(&way).await;
        assert_eq!((failure.kind, failure.cause), (ErrorKind::Network, Cause::Lookup));
    })
    .await;
}

#[tokio::test]
async fn a_connection_that_is_lost_may_have_run_the_command() {
    let sshd = Sshd::start_default().unwrap();
    each_way(&sshd, &[], async |way| {
        let routes = [Route::Ignore, Route::Pipe, Route::Ignore];
        let mut session = way.session(&exec("echo begun; sleep 600"), routes).await.unwrap();
        let Output::Program(mut stdout) = session.stdout else {
            panic!("it is the program's");
        };
        let mut pieces: Vec<Bytes> = Vec::new();
        while !pieces.concat().ends_with(b"begun\n") {
            assert!(stdout.chunks(&mut pieces).await > 0);
        }
        sshd.kill_connections();
        let (ended, rest) = tokio::join!(session.end.wait(), stdout.chunks(&mut pieces));
        assert_eq!(rest, 0);
        assert!(!stdout.is_complete().await);
        let failure = ended.unwrap_err();
        assert_eq!(
            (failure.kind, failure.execution),
            (ErrorKind::Network, Execution::MayHaveStarted)
        );
    })
    .await;
}
