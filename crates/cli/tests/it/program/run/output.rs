//! The output of a run: rows, records, and errors that are told once.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;

use super::Fleet;
use crate::home::{assert_says, closed_address, describe, fail, finish, text, with_status};
use crate::tty::Terminal;

#[test]
fn an_error_of_this_machine_is_told_once() {
    let fleet = Fleet::with_hosts(3);
    let config = fs::read_to_string(&fleet.config).unwrap();
    fs::write(&fleet.config, format!("NoSuchOption yes\n{config}")).unwrap();
    let output = with_status(255, fleet.run(&["-H", "box[1-3]"], "true"));
    let said = text(&output.stderr);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("nosuchoption"), "{said}");
    fs::write(&fleet.config, config).unwrap();

    let fleet = Fleet::with_hosts(3);
    fleet.home.settings("no_such_setting = 1\n");
    let output = with_status(255, fleet.run(&["-H", "box[1-3]"], "true"));
    let said = text(&output.stderr);
    assert_eq!(
        said.matches("there is no setting no_such_setting").count(),
        1,
        "{said}"
    );
}

#[test]
fn a_host_whose_output_cannot_be_written_fails_alone() {
    let fleet = Fleet::with_hosts(3);
    let directory = fleet.home.path("output");
    // In the places of two files.
    for name in ["box1.stdout", "box2.stdout"] {
        fs::create_dir_all(directory.join(name)).unwrap();
    }
    let options = ["-H", "box[1-3]", "-j", "1", "-O", directory.to_str().unwrap()];
    let output = with_status(1, fleet.run(&options, "echo ran; exec [ {n} != 2 ]"));
    assert_eq!(text(&output.stdout), "box1: ran\nbox2: ran\nbox3: ran\n");
    assert_eq!(fs::read(directory.join("box3.stdout")).unwrap(), b"ran\n");
    let said = text(&output.stderr);
    assert!(said.contains("1 succeeded, 2 failed"), "{said}");
    for (name, end) in [("box1", ""), ("box2", "; the command: exit status 1")] {
        let error = format!("cannot write {}/{name}.stdout: ", directory.display());
        let row = said.lines().find(|line| line.contains(&error));
        assert!(
            row.is_some_and(|row| row.contains("finished")
                && row.matches("(os error").count() < 2
                && row.ends_with(end)),
            "{said}"
        );
    }
}

#[test]
fn hosts_that_fail_alike_share_a_row() {
    let fleet = Fleet::with_hosts(1);
    let mut config = fs::read_to_string(&fleet.config).unwrap();
    for name in ["down1", "down2"] {
        config = format!(
            "{config}\n{}",
            fleet.server.host_entry(name).with_address(closed_address())
        );
    }
    fs::write(&fleet.config, config).unwrap();
    let output = with_status(1, fleet.run(&["-H", "box1,down[1-2]", "--quiet"], "echo ran"));
    assert_eq!(text(&output.stdout), "box1: ran\n");
    let said = text(&output.stderr);
    let row = said.lines().find(|line| line.contains("down[1-2]"));
    assert!(
        row.is_some_and(|row| row.ends_with("port …: Connection refused")),
        "{said}"
    );
    let output = fleet.run(&["-H", "box1", "--quiet"], "echo ran");
    assert_eq!(text(&output.stderr), "", "{}", describe(&output));
}

#[test]
fn rows_and_records_are_in_the_order_of_the_list() {
    let fleet = Fleet::with_hosts(3);
    let options = ["-H", "box3,box1,box2"];
    let output = with_status(
        1,
        fleet.run(
            &[&options[..], &["--table"]].concat(),
            "echo a,{n}; test {n} != 2",
        ),
    );
    let shown = text(&output.stdout);
    let column = |n: usize| -> Vec<&str> {
        let rows = shown.lines();
        rows.map(|row| {
            row.split("  ")
                .map(str::trim)
                .filter(|cell| !cell.is_empty())
                .nth(n)
                .unwrap()
        })
        .collect()
    };
    assert_eq!(column(0), ["HOST", "box3", "box1", "box2"], "{shown}");
    assert_eq!(column(1), ["STATUS", "ok", "exit status 1", "ok"], "{shown}");
    assert_eq!(column(3), ["OUTPUT", "a,1", "a,2", "a,3"], "{shown}");
    let output = with_status(0, fleet.run(&[&options[..], &["--csv"]].concat(), "printf a,{n}"));
    let csv = text(&output.stdout);
    let lines: Vec<&str> = csv.lines().collect();
    assert!(lines[0].starts_with("host,kind,status,"), "{csv}");
    assert!(
        lines[1].starts_with("box3,exited,0,,,finished,\"a,1\",\"\","),
        "{csv}"
    );
    fail(2, fleet.command(&["-H", "box1", "--csv", "--json"]).arg("true"));
}

#[test]
fn lines_come_host_by_host_or_without_names() {
    let fleet = Fleet::with_hosts(3);
    let options = |more: &[&'static str]| [&["-q", "-H", "box3,box1,box2"], more].concat();
    let command = "test {n} = 3 || sleep 0.1; echo to {n}; echo all";
    let output = with_status(0, fleet.run(&options(&["-L"]), command));
    let lines = "box3: to 1\nbox3: all\nbox1: to 2\nbox1: all\nbox2: to 3\nbox2: all\n";
    assert_eq!(text(&output.stdout), lines);
    let output = fleet.run(&options(&["-LN"]), command);
    assert_eq!(text(&output.stdout), "to 1\nall\nto 2\nall\nto 3\nall\n");
    let output = with_status(
        1,
        fleet.run(&options(&["-bL"]), "echo all; echo oops >&2; test {n} != 1"),
    );
    assert_eq!(text(&output.stdout), "box[1-2]: all\nbox3: all\n");
    let said = text(&output.stderr);
    assert!(said.starts_with("box[1-2]! oops\nbox3! oops\n"), "{said}");
    // No heading has told it.
    assert!(said.contains("exit status 1"), "{said}");
    let output = fleet.run(&["-q", "-N", "-H", "box1"], "echo out; echo err >&2");
    assert_eq!(text(&output.stdout), "out\n");
    assert_eq!(text(&output.stderr), "err\n");
}

#[test]
fn groups_are_those_of_clustershell() {
    let fleet = Fleet::with_hosts(3);
    let programs = fleet.home.path("programs");
    fs::create_dir(&programs).unwrap();
    let nodeset = programs.join("nodeset");
    let run = |group: &str| {
        let mut run = fleet.command(&["-q", "-g", group, "-x", "box2"]);
        let path = std::env::var("PATH").unwrap();
        run.env("PATH", format!("{}:{path}", programs.display()));
        finish(run.args(["--", "echo here"]))
    };
    // What ClusterShell 1.9 does.
    let script = "#!/bin/sh\nfor last; do :; done\ncase $last in @few) printf 'box1\\nbox2\\nbox3\\n';; @nobody) ;;\n\
                  *) echo \"Usage: nodeset\" >&2; echo \"nodeset: error: No group named few\" >&2; exit 1;; esac\n";
    fs::write(&nodeset, script).unwrap();
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(&nodeset, fs::Permissions::from_mode(0o755)).unwrap();
    let output = with_status(0, run("few"));
    let shown = text(&output.stdout);
    let mut lines: Vec<&str> = shown.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["box1: here", "box3: here"]);
    for (group, said) in [
        ("nobody", "no host is in nobody"),
        ("other", "No group named few"),
    ] {
        let output = with_status(255, run(group));
        assert_says(&output, said);
    }
}

#[test]
fn ctrl_c_leaves_no_line_of_progress() {
    let fleet = Fleet::with_hosts(2);
    let mut terminal = Terminal::start(fleet.command(&["-H", "box[1-2]"]).args(["--", "sleep", "1000"]));
    terminal.expect("2 running");
    // Its end is drawn with it.
    terminal.answer(" s)", "\x03");
    let before = terminal.expect("^C");
    let line = before.rsplit('\r').next().unwrap_or_default();
    // The line that it is in has room for it: what clears that line clears all.
    assert!(console::measure_text_width(line) < 78, "{line:?}");
    // The terminal sends the signal before it shows the key: the program may have ended by then.
    if !before.contains("interrupted") {
        terminal.send("\x03");
        terminal.expect("interrupted");
    }
    assert_eq!(terminal.end().signal(), Some(2));
}

#[test]
fn a_terminal_that_cannot_be_drawn_on_gets_no_escape_sequence() {
    let fleet = Fleet::with_hosts(2);
    let large = fleet.home.path("large");
    fs::write(&large, vec![0; 1 << 20]).unwrap();
    let script = "\"$T\" run -F \"$F\" -H box[1-2] 'sleep 0.5; echo ran {n}'; \
                  \"$T\" cp -F \"$F\" --bwlimit 2M \"$L\" box1:\"$L.copy\"; \
                  timeout -s INT 2 \"$T\" ls --watch; echo end";
    let mut shell = fleet.home.command("bash");
    shell
        .args(["-c", script])
        .env("TERM", "dumb")
        .env("T", crate::home::program())
        .env("F", &fleet.config)
        .env("L", &large);
    let mut terminal = Terminal::start(&shell);
    terminal.expect("end");
    assert_eq!(terminal.end().code(), Some(0));
    let shown = terminal.text();
    for said in ["ran 2", "1 copied", "HOST"] {
        assert!(shown.contains(said), "{shown}");
    }
    assert!(!shown.contains('\u{1b}'), "{shown:?}");
}
