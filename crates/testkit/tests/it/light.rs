//! The stock client against the light server.

use std::process::{Command, Output, Stdio};

use trunkline_testkit::{Ended, LightServer};

fn ssh(server: &LightServer, host: &str, command: &str) -> Output {
    Command::new("timeout")
        .args(["10", "ssh", "-F"])
        .arg(server.ssh_config())
        .args([host, command])
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn each_address_is_a_host_with_a_ledger_of_what_it_executed() {
    let server = LightServer::start().unwrap();
    let hosts = [LightServer::host(0, 1), LightServer::host(7, 700)];
    assert_eq!(hosts[1], "127.8.2.188");
    for (command, status) in [
        ("true # one", 0),
        ("exit 7", 7),
        ("sleep 1", 0),
        ("no such word", 127),
    ] {
        for host in &hosts {
            let output = ssh(&server, host, command);
            assert_eq!(output.status.code(), Some(status), "{command}: {output:?}");
        }
    }
    let drawn = ssh(&server, &hosts[0], "draw 0");
    let executions = server.executions();
    assert_eq!((executions.len(), server.connections()), (9, 9));
    let last = executions.last().unwrap();
    let told = String::from_utf8(drawn.stdout).unwrap();
    assert_eq!(told, format!("{}\n", last.number));
    let status = drawn.status.code().and_then(|status| u32::try_from(status).ok());
    assert_eq!(last.end, status.map(Ended::Status));
    for (execution, host) in executions.iter().zip(hosts.iter().cycle()) {
        assert_eq!(execution.host.to_string(), *host);
    }
    assert_eq!(executions[0].command, "true # one");
}
