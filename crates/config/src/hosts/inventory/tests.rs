use std::fs;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use proptest::prelude::*;

use super::*;

/// A directory of inventory files, and a PATH with the programs that the test puts into `bin`.
struct Place {
    directory: tempfile::TempDir,
    world: World,
}

impl Place {
    fn new(files: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let env = [
            (
                "PATH".into(),
                format!("{}/bin:/bin:/usr/bin", directory.path().display()).into(),
            ),
            ("HOME".into(), directory.path().join("home").into()),
        ];
        let place = Self {
            world: World::new(directory.path(), 0o22, env.into()),
            directory,
        };
        for (name, text) in files {
            place.write(name, text);
        }
        place
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        if text.starts_with("#!") {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
    }

    async fn load(&self, name: &str) -> Result<Inventory, InventoryError> {
        Inventory::load(&[name.into()], &self.world).await
    }

    /// Returns the number of times that `ansible-inventory` was run.
    fn runs(&self) -> usize {
        fs::read_to_string(self.directory.path().join("runs")).map_or(0, |runs| runs.lines().count())
    }
}

/// A program that prints its source's lines as the hosts of group `g`.
const ANSIBLE: (&str, &str) = (
    "bin/ansible-inventory",
    "#!/bin/sh\necho \"$*\" >> runs\nset -- $(cat \"$2\")\nprintf '{\"g\": {\"hosts\": ['\n\
     for h; do printf '%s\"%s\"' \"$comma\" \"$h\"; comma=,; done\necho ']}}'\n",
);

fn list_inventory(groups: &str, variables: &str) -> Inventory {
    let json = format!("{{\"_meta\": {{\"hostvars\": {{{variables}}}}}, {groups}}}");
    match Inventory::from_json(json.as_bytes()) {
        Ok(inventory) => inventory,
        Err(_) => panic!("{json}"),
    }
}

fn names(inventory: &Inventory, pattern: &str) -> Vec<String> {
    let selection = inventory.select(pattern, None).unwrap();
    selection.targets.into_iter().map(|target| target.name).collect()
}

fn only(inventory: &Inventory, name: &str) -> Target {
    let selection = inventory.select(name, None).unwrap();
    assert_eq!(selection.targets.len(), 1, "{selection:?}");
    selection.targets[0].clone()
}

#[test]
fn variables_decide_where_a_host_is() {
    let inventory = list_inventory(
        r#""all": {"children": ["ungrouped", "g"]}, "g": {"hosts": ["a", "b"]}, "ungrouped": {"hosts": ["c"]}"#,
        r#""a": {"ansible_host": "1.2.3.4", "ansible_port": 99, "ansible_user": "u"},
           "b": {"ansible_ssh_private_key_file": "~/.ssh/db", "ansible_password": "secret",
                 "ansible_ssh_common_args": "-o ProxyJump=bastion -o \"UserKnownHostsFile=/a b\""}"#,
    );
    assert_eq!(inventory.hosts(), ["c", "a", "b"]);
    assert_eq!(
        only(&inventory, "a").destination,
        Destination::new(Some("u"), "1.2.3.4", Some(99)).unwrap()
    );
    assert_eq!(
        only(&inventory, "b").ssh_args,
        [
            "-i",
            "~/.ssh/db",
            "-o",
            "ProxyJump=bastion",
            "-o",
            "UserKnownHostsFile=/a b"
        ]
    );
    assert_eq!(only(&inventory, "ungrouped").destination, "c".parse().unwrap());
    assert!(!format!("{inventory:?}").contains("secret"));
}

#[test]
fn of_two_names_for_a_variable_the_last_of_ansible_s_wins() {
    let inventory = list_inventory(
        r#""g": {"hosts": ["a"]}"#,
        r#""a": {"ansible_host": "1.1.1.1", "ansible_ssh_host": "2.2.2.2", "ansible_port": 1, "ansible_ssh_port": 2,
                 "ansible_user": "one", "ansible_ssh_user": "two", "ansible_private_key_file": "one",
                 "ansible_ssh_private_key_file": "two", "ansible_ssh_common_args": "-v", "ansible_ssh_args": "-J jump"}"#,
    );
    let target = only(&inventory, "a");
    assert_eq!(
        target.destination,
        Destination::new(Some("two"), "2.2.2.2", Some(2)).unwrap()
    );
    assert_eq!(target.ssh_args, ["-i", "two", "-J", "jump", "-v"]);
}

#[test]
fn a_subscript_counts_in_the_order_of_its_own_group() {
    let inventory = list_inventory(
        r#""all": {"children": ["prod", "DB", "db", "top"]}, "prod": {"hosts": ["db-a", "db-b"]}, "DB": {"hosts": ["PX"]},
           "db": {"hosts": ["px-old", "db-a"]}, "top": {"hosts": ["t"], "children": ["mid", "low"]},
           "mid": {"hosts": ["m"], "children": ["deep"]}, "deep": {"hosts": ["d"]}, "low": {"hosts": ["m", "l"]}"#,
        "",
    );
    for (pattern, wanted) in [
        ("db[0]", "px-old"),
        ("db[-1]", "db-a"),
        ("top[0:1]", "m t"),
        ("top[2]", "l"),
        ("top[3]", "d"),
        // Hosts that match by their own name come after those of matching groups.
        ("db*[1]", "db-a"),
        ("db*[3]", "db-b"),
        ("db*[4:]", ""),
        // Matching groups come in the order of the inventory.
        ("*o*[0]", "db-a"),
        ("[tp]*[0]", "db-a"),
    ] {
        let mut names = names(&inventory, pattern);
        names.sort_unstable();
        assert_eq!(names.join(" "), wanted, "{pattern}");
    }
}

#[test]
fn wildcards_are_python_s() {
    let inventory = list_inventory(
        r#""all": {"children": ["Web", "web", "db"]}, "Web": {"hosts": ["W1"]}, "web": {"hosts": ["w1", "db"]},
           "db": {"hosts": ["db-a", "db-b", "db-c", "db-]", "db-[", "db--", "db-!", "d.b"]}"#,
        "",
    );
    for (pattern, wanted) in [
        ("W*", "W1"),
        ("web", "w1 db"),
        ("WEB", ""),
        ("~w", "w1 db"),
        // The host of this name, not the group.
        ("db", "db"),
        ("db-[ab]", "db-a db-b"),
        ("db-[a-b]", "db-a db-b"),
        ("db-[b-a]", ""),
        ("db-[!a-c]", "db-] db-[ db-- db-!"),
        ("db-[!b-a]", "db-a db-b db-c db-] db-[ db-- db-!"),
        ("db-[]]", "db-]"),
        ("db-[!]]", "db-a db-b db-c db-[ db-- db-!"),
        ("db-[", "db-["),
        ("db-[-a]", "db-a db--"),
        ("db-[a-]", "db-a db--"),
        ("db-[a!]", "db-a db-!"),
        ("d[.]b", "d.b"),
        ("all:!db-[ab]:!w*:!W*:!d.*:!db-[!c]", "db-c"),
    ] {
        assert_eq!(names(&inventory, pattern).join(" "), wanted, "{pattern}");
    }
    for pattern in ["all:!db-[x-z]", "all:!web[7]"] {
        let refused = inventory.select(pattern, None);
        assert!(
            matches!(refused, Err(InventoryError::Pattern { .. })),
            "{pattern}"
        );
    }
}

#[test]
fn patterns_name_intersect_and_exclude() {
    let inventory = list_inventory(
        r#""all": {"children": ["web", "db", "staging"]}, "db": {"hosts": ["d1", "d2"]},
           "staging": {"hosts": ["w3", "d2"]}, "web": {"hosts": ["w1", "w2", "w3"]}"#,
        "",
    );
    for (pattern, wanted) in [
        ("all", "w1 w2 w3 d1 d2"),
        ("*", "w1 w2 w3 d1 d2"),
        ("web:db", "w1 w2 w3 d1 d2"),
        ("web,db,!staging", "w1 w2 d1"),
        ("web:&staging", "w3"),
        ("!staging:web", "w1 w2"),
        ("!web", "d1 d2"),
        ("w*:!w2", "w1 w3"),
        ("d?", "d1 d2"),
        ("~(w|d)1", "w1 d1"),
        ("~^.2$", "w2 d2"),
        ("~w[12]", "w1 w2"),
        ("st*", "w3 d2"),
        ("web[0]", "w1"),
        ("web[-1]", "w3"),
        ("web[1:2]", "w2 w3"),
        ("web[1:]", "w2 w3"),
        ("web[7]", ""),
        ("nothing", ""),
    ] {
        assert_eq!(names(&inventory, pattern).join(" "), wanted, "{pattern}");
    }
    let limited = inventory.select("web", Some("staging:w1")).unwrap();
    let limited: Vec<_> = limited
        .targets
        .iter()
        .map(|target| target.name.as_str())
        .collect();
    assert_eq!(limited, ["w1", "w3"]);
    assert!(matches!(
        inventory.select("~(", None),
        Err(InventoryError::Pattern { .. })
    ));
}

#[test]
fn a_host_that_ssh_cannot_reach_is_told_apart() {
    let inventory = list_inventory(
        r#""g": {"hosts": ["a", "b", "c", "d", "e", "-f", "h"]}"#,
        r#""a": {"ansible_connection": "local"}, "b": {"ansible_host": "{{ ip }}"}, "c": {"ansible_port": "many"},
           "e": {"ansible_user": {"__ansible_vault": "$ANSIBLE_VAULT;1.1;AES256"}},
           "h": {"ansible_ssh_common_args": "-v", "ansible_ssh_extra_args": "{{ more }}"}"#,
    );
    let selection = inventory.select("all", None).unwrap();
    assert_eq!(selection.targets.len(), 1);
    let why: Vec<_> = selection
        .skipped
        .iter()
        .map(|skipped| skipped.why.as_str())
        .collect();
    for (why, word) in why.iter().zip([
        "local",
        "template",
        "not a port number",
        "encrypted",
        "",
        "template",
    ]) {
        assert!(why.contains(word), "{why:?}");
    }
    assert_eq!(why.len(), 6);
}

#[test]
fn circles_of_groups_end() {
    let inventory = list_inventory(
        r#""a": {"hosts": ["x"], "children": ["b"]}, "b": {"children": ["a"]}, "c": {"hosts": ["y"], "children": ["a"]}"#,
        "",
    );
    assert_eq!(names(&inventory, "b"), ["x"]);
    assert_eq!(names(&inventory, "all"), ["y", "x"]);
}

#[tokio::test]
async fn an_answer_is_remembered_while_its_files_are_the_same() {
    let place = Place::new(&[ANSIBLE, ("hosts", "a b\n"), ("group_vars/all.yml", "x: 1\n")]);
    for runs in [1, 1] {
        assert_eq!(names(&place.load("hosts").await.unwrap(), "g"), ["a", "b"]);
        assert_eq!(place.runs(), runs);
    }
    place.write("hosts", "a b c\n");
    assert_eq!(names(&place.load("hosts").await.unwrap(), "g"), ["a", "b", "c"]);
    assert_eq!(place.runs(), 2);
    for changed in [
        "group_vars/all.yml",
        "group_vars/g/more.yml",
        "host_vars/a",
        "ansible.cfg",
    ] {
        place.write(changed, "other\n");
        let runs = place.runs();
        place.load("hosts").await.unwrap();
        place.load("hosts").await.unwrap();
        assert_eq!(place.runs(), runs + 1, "{changed}");
    }
}

#[tokio::test]
async fn what_scripts_plugins_and_pipes_say_is_asked_each_time() {
    let place = Place::new(&[
        ANSIBLE,
        ("script", "#!/bin/sh\n"),
        ("cloud.yml", "plugin: amazon.aws.aws_ec2\n"),
        ("directory/deep/cloud.yml", "plugin: x\n"),
    ]);
    for name in ["script", "cloud.yml"] {
        let runs = place.runs();
        for _ in 0..2 {
            place.load(name).await.unwrap();
        }
        assert_eq!(place.runs(), runs + 2, "{name}");
    }
    assert_eq!(
        memory::Key::new(
            Path::new("/bin/sh"),
            &[place.directory.path().join("directory")],
            &place.world
        ),
        None
    );
    let (reader, mut writer) = std::io::pipe().unwrap();
    std::io::Write::write_all(&mut writer, b"piped\n").unwrap();
    drop(writer);
    let pipe = format!("/proc/self/fd/{}", reader.as_raw_fd());
    assert_eq!(names(&place.load(&pipe).await.unwrap(), "g"), ["piped"]);
}

#[tokio::test]
async fn without_ansible_or_a_file_or_an_answer_it_says_so() {
    let mut place = Place::new(&[("hosts", "a\n")]);
    place
        .world
        .env
        .insert("PATH".into(), place.directory.path().join("bin").into());
    let error = place.load("hosts").await.unwrap_err();
    assert!(matches!(error, InventoryError::NoAnsible), "{error}");
    place.write(
        "bin/ansible-inventory",
        "#!/bin/sh\necho no credentials >&2\nexit 3\n",
    );
    let error = place.load("hosts").await.unwrap_err().to_string();
    assert!(error.contains("no credentials"), "{error}");
    place.write("bin/ansible-inventory", "#!/bin/sh\necho '[]'\n");
    assert!(matches!(
        place.load("hosts").await.unwrap_err(),
        InventoryError::Program { .. }
    ));
    assert!(matches!(
        place.load("nowhere").await.unwrap_err(),
        InventoryError::File { .. }
    ));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn no_pattern_panics(pattern in "[ab!&~:,*?\\[\\]0-9(-]{0,12}") {
        let inventory = list_inventory(r#""a": {"hosts": ["ab", "b1"], "children": ["b"]}, "b": {"hosts": ["a"]}"#, "");
        let _ = inventory.select(&pattern, Some(&pattern));
    }
}

/// A program that prints settings of ansible.cfg as `ansible-config dump` does.
const CONFIG: (&str, &str) = (
    "bin/ansible-config",
    "#!/bin/sh\ncat <<END\n[{\"ssh\": [{\"name\": \"remote_user\", \"origin\": \"\", \"value\": \"deploy\"},\n\
     {\"name\": \"port\", \"origin\": \"\", \"value\": 2200}, {\"name\": \"host_key_checking\", \"value\": false},\n\
     {\"name\": \"ssh_common_args\", \"origin\": \"\", \"value\": \"-J hop\"}]}]\nEND\n",
);

#[tokio::test]
async fn what_ansible_cfg_says_holds_where_no_variable_does() {
    let place = Place::new(&[ANSIBLE, CONFIG, ("hosts", "a b\n")]);
    let mut inventory = place.load("hosts").await.unwrap();
    let own = [
        ("ansible_ssh_user", "me"),
        ("ansible_ssh_common_args", "-J other"),
    ];
    let own = own.map(|(name, value)| (name.to_owned(), value.to_owned()));
    inventory.variables.insert("b".into(), own.into());
    let targets = inventory.select("all", None).unwrap().targets;
    let reached = targets.iter().map(|target| {
        let Destination { user, port, .. } = &target.destination;
        (
            user.as_deref().unwrap(),
            port.unwrap(),
            target.ssh_args[1].to_str().unwrap(),
        )
    });
    assert_eq!(
        reached.collect::<Vec<_>>(),
        [("deploy", 2200, "hop"), ("me", 2200, "other")]
    );
    // The settings are remembered together with the hosts.
    let again = place.load("hosts").await.unwrap().select("a", None).unwrap();
    assert_eq!(again.targets[0].destination.user.as_deref(), Some("deploy"));
    assert_eq!(place.runs(), 1);
}

#[tokio::test]
async fn a_configuration_that_cannot_be_read_is_not_passed_over() {
    let broken = ("bin/ansible-config", "#!/bin/sh\necho broken >&2; exit 5\n");
    let place = Place::new(&[ANSIBLE, broken, ("hosts", "a\n")]);
    let error = place.load("hosts").await.unwrap_err().to_string();
    assert!(
        error.contains("ansible-config failed") && error.contains("broken"),
        "{error}"
    );
}
