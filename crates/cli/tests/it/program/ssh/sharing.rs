//! Sharing of connections: never by a command that would reach another machine, or trust another one, with ssh.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use trunkline_testkit::Sshd;

use crate::home::{
    Home, assert_has, assert_prints, assert_says, describe, fail, finish, server, succeed, text,
};

/// Prints the port of the server that runs it.
const WHICH: &str = "echo $SSH_CONNECTION | cut -d' ' -f4";

/// A proxy command in bash alone, to a port that is said when it runs.
fn proxy_to(port: &str) -> String {
    format!("bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}; cat <&3 & cat >&3; kill $!'")
}

/// Two servers, one name for both.
struct Two {
    home: Home,
    servers: [Sshd; 2],
    config: PathBuf,
}

impl Two {
    /// `lines` are about the host "box", behind which `{one}` and `{two}` stand for the servers' ports.
    fn new(lines: &str) -> Self {
        let (home, servers) = (Home::new(), [server(), server()]);
        let [one, two] = [&servers[0], &servers[1]];
        let known = home.path("known_hosts");
        let keys = [one, two].map(|server| {
            let known = fs::read_to_string(server.host_entry("x").known_hosts).unwrap();
            known
                .lines()
                .filter_map(|line| line.split_once(' ').map(|(_, key)| format!("* {key}\n")))
                .collect::<String>()
        });
        fs::write(&known, keys.concat()).unwrap();
        let mut entry = one.host_entry("box jump");
        entry.known_hosts = known;
        entry.identities.extend(two.host_entry("x").identities);
        let lines = lines
            .replace("{one}", &one.addr().port().to_string())
            .replace("{two}", &two.addr().port().to_string());
        let config = home.path("config");
        fs::write(&config, format!("{lines}\n{entry}")).unwrap();
        Self {
            home,
            servers,
            config,
        }
    }

    fn port(&self, server: usize) -> String {
        self.servers[server].addr().port().to_string()
    }

    fn ours(&self) -> Command {
        self.home.ssh_with(&self.config)
    }

    fn stock(&self) -> Command {
        let mut command = self.home.command("/usr/bin/ssh");
        command.arg("-F").arg(&self.config);
        command
    }

    /// For which server ssh and trunkline run a command, each started as `prepare` says.
    fn reached_servers(&self, prepare: impl Fn(&mut Command)) -> [String; 2] {
        [self.stock(), self.ours()].map(|mut command| {
            prepare(&mut command);
            let output = succeed(command.args(["box", WHICH]));
            text(&output.stdout).trim().to_owned()
        })
    }
}

#[test]
fn a_proxy_command_that_goes_by_the_environment_reaches_who_ssh_reaches() {
    let two = Two::new(&format!("Host box\n ProxyCommand {}", proxy_to("$BOX_PORT")));
    for server in [0, 1, 0] {
        let port = two.port(server);
        let reached = two.reached_servers(|command| {
            command.env("BOX_PORT", &port);
        });
        assert_eq!(reached, [port.clone(), port]);
    }
    assert_eq!(two.servers[0].authentications(), 3, "ssh twice, and ours once");
}

#[test]
fn a_proxy_command_that_goes_by_the_directory_or_the_shell_reaches_who_ssh_reaches() {
    let two = Two::new(&format!("Host box\n ProxyCommand {}", proxy_to("$(cat port)")));
    for (name, server) in [("a", 0), ("b", 1)] {
        let directory = two.home.path(name);
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("port"), two.port(server)).unwrap();
        let reached = two.reached_servers(|command| {
            command.current_dir(&directory);
        });
        assert_eq!(reached, [two.port(server), two.port(server)]);
    }
    let two = Two::new(&format!("Host box\n ProxyCommand {}", proxy_to("$PORT")));
    for server in [0, 1] {
        let script = format!(
            "#!/bin/sh\nexport PORT={}\nexec /bin/sh \"$@\"\n",
            two.port(server)
        );
        let shell = two.home.script(&format!("shell{server}"), &script);
        let reached = two.reached_servers(|command| {
            command.env("SHELL", &shell);
        });
        assert_eq!(reached, [two.port(server), two.port(server)]);
    }
}

#[test]
fn a_proxy_command_is_run_with_its_callers_umask() {
    let two = Two::new("Host box\n ProxyCommand {proxy}");
    let masks = two.home.path("masks");
    let proxy = two.home.script(
        "proxy",
        &format!(
            "#!/bin/bash\numask >>{}\nexec {}\n",
            masks.display(),
            proxy_to(&two.port(0))
        ),
    );
    let config = fs::read_to_string(&two.config).unwrap();
    fs::write(
        &two.config,
        config.replace("{proxy}", &proxy.display().to_string()),
    )
    .unwrap();
    for mask in ["0027", "0002"] {
        let mut shell = two
            .home
            .shell(&two.servers[0], "umask $MASK; $T ssh -F $CONFIG box true");
        succeed(shell.env("MASK", mask).env("CONFIG", &two.config));
    }
    assert_eq!(fs::read_to_string(&masks).unwrap(), "0027\n0002\n");
}

#[test]
fn jump_hosts_that_a_match_exec_tells_apart_are_two() {
    // The name is one; which machine it is says a command.
    let two = Two::new(
        "Host box\n ProxyJump jump\n HostName 127.0.0.1\n Port {two}\n\
         Match host jump exec \"test x$VIA = xone\"\n HostName 127.0.0.1\n Port {one}\n\
         Host jump\n HostName 127.0.0.1\n Port {two}",
    );
    for via in ["one", "two"] {
        let output = succeed(two.ours().env("VIA", via).args(["box", WHICH]));
        assert_eq!(text(&output.stdout).trim(), two.port(1), "{}", describe(&output));
    }
    // Each of them was logged in to as a jump host, and the host behind each of them.
    assert_eq!(two.servers[0].authentications(), 1);
    assert_eq!(two.servers[1].authentications(), 3);
}

#[test]
fn two_terminals_of_one_user_share() {
    let two = Two::new(&format!("Host box\n ProxyCommand {}", proxy_to("{one}")));
    for (pane, level) in [("%1", "1"), ("%2", "3")] {
        succeed(
            two.ours()
                .env("TMUX_PANE", pane)
                .env("SHLVL", level)
                .env("OLDPWD", pane)
                .env("WINDOWID", level)
                .args(["box", "true"]),
        );
    }
    assert_eq!(two.servers[0].authentications(), 1);
}

#[test]
fn explain_shows_a_digest_of_the_environment_and_no_value() {
    let two = Two::new(&format!("Host box\n ProxyCommand {}", proxy_to("{one}")));
    let explained = |secret: &str| {
        let mut command = two.home.trunkline();
        command
            .args(["explain", "--all", "-F"])
            .arg(&two.config)
            .arg("box");
        let output = succeed(command.env("API_TOKEN", secret));
        text(&output.stdout)
    };
    let (one, other) = (explained("hunter2"), explained("hunter3"));
    assert_has(&one, "environment");
    assert_has(&one, " variables, ");
    assert!(!one.contains("hunter2"), "{one}");
    assert_ne!(one, other);
}

/// A shell in a namespace of its own, in which `$T` is the program, `$C` the configuration, `$D` the home's directory
/// and `$W` a command that says which server runs it.
fn elsewhere(two: &Two, namespace: &str, script: &str) -> Command {
    let mut command = two.home.command("unshare");
    command
        .args([namespace, "bash", "-c", script])
        .env("T", crate::home::program())
        .env("C", &two.config)
        .env("W", WHICH)
        .env("D", two.home.path(""));
    command
}

#[test]
fn a_client_in_another_network_namespace_reaches_what_is_reached_from_there() {
    let two = Two::new("");
    succeed(two.ours().args(["box", "true"]));
    // The loopback interface is down there, so that nobody is reached.
    for ssh in ["/usr/bin/ssh", "$T ssh", "$T --no-daemon ssh"] {
        let script = format!("{ssh} -F $C box 'echo reached'");
        let output = fail(255, &mut elsewhere(&two, "-n", &script));
        assert_eq!(text(&output.stdout), "", "{}", describe(&output));
    }
    // With the interface up, it is another loopback: a port that nobody listens on.
    let script = "ip link set lo up 2>/dev/null; $T cp -F $C box:/etc/hostname $D/copied";
    let output = finish(&mut elsewhere(&two, "-n", script));
    assert!(!output.status.success(), "{}", describe(&output));
    assert!(!two.home.path("copied").exists());
    let output = finish(&mut elsewhere(&two, "-n", "$T warm -F $C box"));
    assert!(!output.status.success(), "{}", describe(&output));
    assert_eq!(two.servers[0].authentications(), 1);
}

#[test]
fn a_client_in_another_mount_namespace_means_the_files_that_it_sees() {
    let two = Two::new("Host box\n Port {one}");
    let other = two.home.path("other");
    let text_of = fs::read_to_string(&two.config).unwrap();
    let ports = [0, 1].map(|server| format!("Port {}", two.port(server)));
    fs::write(&other, text_of.replacen(&ports[0], &ports[1], 1)).unwrap();
    assert_eq!(two.reached_servers(|_| {}), [two.port(0), two.port(0)]);
    for ssh in ["/usr/bin/ssh", "$T ssh"] {
        let script = format!("mount --bind $D/other $C && {ssh} -F $C box \"$W\"");
        let output = succeed(&mut elsewhere(&two, "-m", &script));
        assert_eq!(text(&output.stdout).trim(), two.port(1), "{}", describe(&output));
    }
    // What is cold there says why.
    for (script, said) in [
        (
            "$T ssh -v -F $C box true",
            "; this command makes a connection of its own",
        ),
        (
            "$T explain -F $C box",
            ": commands from here make connections of their own",
        ),
        (
            "$T explain --json -F $C box",
            "\"apart\": \"the daemon runs in a different mount namespace",
        ),
        (
            "$T check -F $C box || true",
            "no connection: the daemon runs in a different mount namespace",
        ),
        (
            "! $T warm --pin -F $C box",
            "trunkline: the daemon runs in a different mount namespace",
        ),
    ] {
        let output = succeed(&mut elsewhere(&two, "-m", script));
        let all = text(&output.stdout) + &text(&output.stderr);
        assert_has(&all, "different mount namespace");
        assert_has(&all, said);
    }
    let explained = finish(
        two.home
            .command(crate::home::program())
            .args(["explain", "--json", "-F"])
            .arg(&two.config)
            .arg("box"),
    );
    assert_prints(&explained, "\"apart\": null");
    // The daemon and its connections are as before.
    assert_eq!(two.servers[0].authentications(), 3);
    assert_eq!(two.reached_servers(|_| {}), [two.port(0), two.port(0)]);
    assert_eq!(two.servers[0].authentications(), 4);
}

#[test]
fn a_daemon_can_be_looked_at_and_stopped_from_another_namespace() {
    let two = Two::new("");
    succeed(two.ours().args(["box", "true"]));
    let listed = succeed(&mut elsewhere(&two, "-n", "$T ls"));
    assert_prints(&listed, "box");
    let closed = finish(&mut elsewhere(&two, "-n", "$T close -F $C box"));
    assert_says(&closed, "another network namespace");
    succeed(&mut elsewhere(&two, "-n", "$T stop"));
}
