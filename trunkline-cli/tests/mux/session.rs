//! Sessions of stock ssh.

use crate::home::{assert_status, server, text};
use crate::stock::Stock;

#[test]
fn a_command_has_its_status_and_output_over_the_daemons_connection() {
    let stock = Stock::new(server());
    let output = stock.on("echo out; echo err >&2; exit 7");
    assert_status(&output, 7);
    assert_eq!(
        (text(&output.stdout), text(&output.stderr)),
        ("out\n".into(), "err\n".into())
    );
    let output = stock.control(&["check"]);
    let pid = stock.home.daemon().unwrap().as_raw_nonzero();
    assert_eq!(text(&output.stderr), format!("Master running (pid={pid})\r\n"));
    stock.assert_logins(1);
}

#[test]
fn a_client_leaves_no_descriptor_behind() {
    let stock = Stock::new(server());
    stock.warm();
    let before = stock.descriptors();
    for _ in 0..5 {
        assert_status(&stock.on("cat"), 0);
    }
    stock.wait_for_descriptors(before);
}

#[test]
fn stop_and_exit_remove_the_socket_and_listening_again_brings_it_back() {
    let stock = Stock::new(server());
    for what in ["stop", "exit"] {
        stock.warm();
        assert_status(&stock.control(&[what]), 0);
        assert!(!stock.socket.exists());
        stock.listen().unwrap();
        assert!(stock.socket.exists() && stock.config().exists());
    }
    stock.warm();
    stock.assert_logins(2);
}
