//! Generated texts: completions, man pages, the page of settings.

use trunkline_testkit::Sshd;

use crate::home::{
    Home, assert_has, assert_prints, assert_says, assert_status, fail, finish, server, succeed, text,
};

#[test]
fn completions_and_man_pages_know_every_command() {
    let home = Home::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = succeed(home.trunkline().args(["completions", shell]));
        // Three shells ask the program, the others have its commands in the script.
        let asks = text(&output.stdout).contains(&format!("trunkline complete {shell} "));
        assert!(asks || text(&output.stdout).contains("explain"), "{shell}");
    }
    assert!(complete(&home, &["expl"])[0].starts_with("explain\tShow "));
    let directory = home.path("man");
    succeed(home.trunkline().arg("man").arg(&directory));
    for command in [
        "ssh", "run", "ls", "check", "close", "warm", "explain", "status", "stop", "daemon",
    ] {
        assert!(
            directory.join(format!("trunkline-{command}.1")).exists(),
            "{command}"
        );
    }
    assert!(text(&finish(home.trunkline().arg("settings")).stdout).contains("idle_timeout"));
}

#[test]
fn settings_are_those_in_force() {
    let (server, home) = (server(), Home::new());
    home.settings("max_lanes = 3\n");
    let settings = || {
        let output = succeed(home.trunkline().arg("settings"));
        text(&output.stdout)
    };
    let of_the_file = settings();
    assert!(
        of_the_file.contains("max_lanes                3*") && !of_the_file.contains("changed"),
        "{of_the_file}"
    );
    assert!(home.daemon().is_none());
    assert_status(&home.run_on(&server, "true"), 0);
    home.settings("max_lanes = 5\n");
    let of_the_daemon = settings();
    assert_has(&of_the_daemon, "max_lanes                3*");
    assert_has(
        &of_the_daemon,
        "since the daemon was started: max_lanes; `trunkline stop`",
    );
    let status = text(&finish(home.trunkline().arg("status")).stdout);
    assert!(status.contains("max_lanes = 3"), "{status}");
    let json = finish(home.trunkline().args(["settings", "--json"]));
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let lanes = json
        .as_array()
        .unwrap()
        .iter()
        .find(|setting| setting["key"] == "max_lanes");
    assert_eq!(lanes.unwrap()["value"], "3");
    // A file that cannot be read is complained about below what can be in it.
    home.settings("max_lane = 5\n");
    let broken = fail(255, home.trunkline().args(["settings", "--json"]));
    assert_eq!(text(&broken.stdout), "");
    let broken = fail(255, home.trunkline().arg("settings"));
    assert_prints(&broken, "`max_lanes`");
    assert_says(
        &broken,
        "line 1: there is no setting max_lane; did you mean max_lanes?",
    );
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let home = Home::new();
    let mut command = home.command("bash");
    command.args([
        "-c",
        "\"$T\" completions bash | head -n 1 >/dev/null; exit ${PIPESTATUS[0]}",
    ]);
    succeed(command.env("T", crate::home::program()));
}

/// Returns the words that may replace the last one, each with its description.
fn complete(home: &Home, words: &[&str]) -> Vec<String> {
    let output = succeed(
        home.trunkline()
            .args(["complete", "fish", "trunkline"])
            .args(words),
    );
    assert_eq!(text(&output.stderr), "");
    text(&output.stdout).lines().map(str::to_owned).collect()
}

/// A configuration with a server, another host, and a known_hosts file of its own.
fn configuration(home: &Home, server: &Sshd) -> String {
    let known = home.path("known");
    let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJd2lHWQxxNwcWMZLqEV5wYmjtyzqVdKplZ7RsGeEigE";
    std::fs::write(
        &known,
        format!("tested,10.9.8.7 {key}\n[tes]:2222 {key}\n\u{1b}tes {key}\n"),
    )
    .unwrap();
    let config = home.path("config");
    let text = std::fs::read_to_string(server.ssh_config()).unwrap();
    let more = format!("Host tester test*\n  UserKnownHostsFile {}\n", known.display());
    std::fs::write(&config, format!("{text}\n{more}")).unwrap();
    config.to_str().unwrap().to_owned()
}

#[test]
fn hosts_are_completed_from_every_place_that_knows_some() {
    let (server, home) = (server(), Home::new());
    let config = configuration(&home, &server);
    let hosts = |words: &[&str]| complete(&home, words);
    let cold = ["testbed\tssh_config", "tested\tknown_hosts", "tester\tssh_config"];
    assert_eq!(hosts(&["ssh", "-F", &config, "tes"]), cold);
    assert_eq!(hosts(&["ssh", "--no-daemon", "-F", &config, "tes"]), cold);
    assert!(home.daemon().is_none(), "completing starts no daemon");
    succeed(home.ssh_with(config.as_ref()).args([server.alias(), "true"]));
    let warm = ["testbed\tconnected", "tested\tknown_hosts", "tester\tssh_config"];
    assert_eq!(hosts(&["check", "-F", &config, "tes"]), warm);
    assert_eq!(
        hosts(&["run", "-F", &config, "-H", "web1,!jo@teste"]),
        ["web1,!jo@tested\tknown_hosts", "web1,!jo@tester\tssh_config"]
    );
    // Those that are in the list are not offered again.
    assert_eq!(
        hosts(&["run", "-F", &config, "-H", "testbed,tested,tes"]),
        ["testbed,tested,tester\tssh_config"]
    );
    assert_eq!(hosts(&["cp", "-F", &config, "tester"]), ["tester:\tssh_config"]);
    assert_eq!(
        hosts(&["ssh", "-F", &config, "-J", "a,tester"]),
        ["a,tester\tssh_config"]
    );
    assert_eq!(
        hosts(&["ssh", "-F", &config, "testbed", "tes"]),
        Vec::<String>::new()
    );
    assert_eq!(server.authentications(), 1);
}

#[test]
fn paths_are_completed_where_a_connection_is() {
    let (server, home) = (server(), Home::new());
    let config = server.ssh_config();
    let config = config.to_str().unwrap();
    let directory = home.path("directory");
    std::fs::create_dir_all(directory.join("a dir")).unwrap();
    for name in ["a\u{1b}[2J", "a$(id)", "b", ".a"] {
        std::fs::write(directory.join(name), "").unwrap();
    }
    std::os::unix::fs::symlink("a dir", directory.join("a link")).unwrap();
    let begun = format!("testbed:{}/a", directory.display());
    let paths = || complete(&home, &["cp", "-F", config, &begun]);
    assert_eq!(paths(), Vec::<String>::new());
    assert!(home.daemon().is_none());
    assert_status(&home.run_on(&server, "true"), 0);
    let shown = |name: &str| format!("testbed:{}/{name}", directory.display());
    assert_eq!(paths(), [shown("a dir/"), shown("a link/"), shown("a$(id)")]);
    // Of many hosts, the first that is connected has them.
    let on_each = format!(":{}/b", directory.display());
    for hosts in [&["-H", "testa,testbed"][..], &["--hosts=test*"], &["-wtestbed"]] {
        let words = [&["cp", "-F", config], hosts, &[&on_each]].concat();
        assert_eq!(complete(&home, &words), [on_each.as_str()], "{hosts:?}");
    }
    // bash replaces what is behind the colon, and runs nothing of it.
    let line = format!("trunkline cp -F {config} {begun}");
    let replaced = begun.split_once(':').unwrap().1;
    let output = finish(home.trunkline().args(["complete", "bash", &line, replaced]));
    let written = |name: &str| format!("{}/{name}\n", directory.display());
    let expected = written("a\\ dir/") + &written("a\\ link/") + &written("a\\$\\(id\\)");
    assert_eq!(text(&output.stdout), expected);
    assert_eq!(server.authentications(), 1);
}

#[test]
fn a_daemon_that_hangs_holds_up_no_completion() {
    let (server, home) = (server(), Home::new());
    assert_status(&home.run_on(&server, "true"), 0);
    let config = server.ssh_config();
    let config = config.to_str().unwrap();
    let daemon = home.stop_answering();
    assert_eq!(
        complete(&home, &["ssh", "-F", config, "testb"]),
        ["testbed\tssh_config"]
    );
    assert_eq!(
        complete(&home, &["cp", "-F", config, "testbed:/"]),
        Vec::<String>::new()
    );
    rustix::process::kill_process(daemon, rustix::process::Signal::CONT).unwrap();
    assert_eq!(
        complete(&home, &["ssh", "-F", config, "testb"]),
        ["testbed\tconnected"]
    );
}

#[test]
fn bash_completes_with_the_script_that_is_printed() {
    let (server, home) = (server(), Home::new());
    let config = configuration(&home, &server);
    let directory = std::path::Path::new(crate::home::program()).parent().unwrap();
    let script = "PATH=$BIN:$PATH; source <(trunkline completions bash)
        COMP_LINE=\"trunkline cp -F $CONFIG teste\" COMP_POINT=${#COMP_LINE}
        _trunkline trunkline teste cp 2>/dev/null
        printf '%s\\n' \"${COMPREPLY[@]}\"; complete -p trunkline";
    let mut command = home.command("bash");
    command
        .args(["-c", script])
        .env("BIN", directory)
        .env("CONFIG", &config);
    let output = finish(&mut command);
    assert_eq!(
        text(&output.stdout),
        "tested:\ntester:\ncomplete -F _trunkline trunkline\n"
    );
}
