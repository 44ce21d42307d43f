use std::fs;
use std::os::unix::fs::PermissionsExt;

use proptest::prelude::*;

use super::*;

/// A folder of inventory files.
struct Place {
    /// Kept because dropping it deletes the files.
    _folder: tempfile::TempDir,
    world: World,
}

impl Place {
    fn new(files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            if text.starts_with("#!") {
                fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            }
        }
        // Without ansible-inventory, whatever this machine has.
        let env = [("PATH".into(), folder.path().join("bin").into())].into();
        Self {
            world: World {
                cwd: folder.path().into(),
                umask: 0o22,
                env,
                vantage: crate::ssh_config::Vantage::default(),
                limits: crate::ssh_config::Limits::default(),
            },
            _folder: folder,
        }
    }

    async fn load(&self, name: &str) -> Result<Inventory, InventoryError> {
        Inventory::load(&[name.into()], &self.world).await
    }
}

fn ini(text: &str) -> Inventory {
    let mut inventory = Inventory::default();
    ini::read(&mut inventory, text, Path::new("hosts")).unwrap();
    inventory
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

const FARM: &str = "
bastion ansible_host=10.0.0.1 ansible_port=2222 ansible_user=jump  # comment

[web]
web[01:03].example.com
[db]
db-[a:c] ansible_ssh_private_key_file=~/.ssh/db
[2001:db8::1]:2200
[prod:children]
web
db
[prod:vars]
ansible_user=deploy
ansible_ssh_common_args='-o ProxyJump=bastion -o \"UserKnownHostsFile=/a b\"'
[db:vars]
ansible_user = postgres
";

#[test]
fn an_ini_file_gives_groups_ranges_and_variables() {
    let inventory = ini(FARM);
    assert_eq!(
        names(&inventory, "web"),
        ["web01.example.com", "web02.example.com", "web03.example.com"]
    );
    assert_eq!(names(&inventory, "ungrouped"), ["bastion"]);
    let bastion = only(&inventory, "bastion");
    assert_eq!(
        bastion.destination,
        Destination::new(Some("jump"), "10.0.0.1", Some(2222)).unwrap()
    );
    let web = only(&inventory, "web01.example.com");
    assert_eq!(web.destination.user.as_deref(), Some("deploy"));
    assert_eq!(
        web.ssh_args,
        ["-o", "ProxyJump=bastion", "-o", "UserKnownHostsFile=/a b"]
    );
    let db = only(&inventory, "db-b");
    assert_eq!(
        db.destination.user.as_deref(),
        Some("postgres"),
        "the inner group wins"
    );
    assert_eq!(db.ssh_args[..2], ["-i", "~/.ssh/db"]);
    let address = only(&inventory, "2001:db8::1");
    assert_eq!(address.destination.port, Some(2200));
}

#[test]
fn patterns_name_intersect_and_exclude() {
    let inventory = ini("[web]\nw1\nw2\nw3\n[staging]\nw3\nd2\n[db]\nd1\nd2\n[all:vars]\n");
    for (pattern, wanted) in [
        ("all", "w1 w2 w3 d2 d1"),
        ("*", "w1 w2 w3 d2 d1"),
        ("web:db", "w1 w2 w3 d2 d1"),
        ("web,db,!staging", "w1 w2 d1"),
        ("web:&staging", "w3"),
        ("!staging:web", "w1 w2"),
        ("!web", "d2 d1"),
        ("w*:!w2", "w1 w3"),
        ("d?", "d2 d1"),
        ("~(w|d)1", "w1 d1"),
        ("~^.2$", "w2 d2"),
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

#[tokio::test]
async fn a_yaml_tree_means_what_the_ini_file_means() {
    let yaml = "
all:
  hosts:
    bastion: {ansible_host: 10.0.0.1, ansible_port: 2222}
  children:
    prod:
      vars: {ansible_user: deploy}
      children:
        web:
          hosts:
            web[01:02]:
        db:
          hosts: {db1: , db2: {ansible_user: root}}
          vars:
            ansible_user: postgres
";
    let inventory = Place::new(&[("hosts.yml", yaml)])
        .load("hosts.yml")
        .await
        .unwrap();
    assert_eq!(names(&inventory, "prod"), ["web01", "web02", "db1", "db2"]);
    assert_eq!(only(&inventory, "bastion").destination.port, Some(2222));
    let user = |name| only(&inventory, name).destination.user;
    assert_eq!(user("web01").as_deref(), Some("deploy"));
    assert_eq!(user("db1").as_deref(), Some("postgres"));
    assert_eq!(user("db2").as_deref(), Some("root"));
    assert_eq!(user("bastion"), None);
}

#[test]
fn the_output_of_list_gives_the_same() {
    let json = br#"{"_meta": {"hostvars": {"a": {"ansible_host": "1.2.3.4", "ansible_port": 99}}},
        "all": {"children": ["g", "ungrouped"]}, "g": {"hosts": ["a", "b"], "vars": {"ansible_user": "u"}}, "h": ["c"]}"#;
    let inventory = Inventory::from_json(json, Path::new("x")).unwrap();
    let target = only(&inventory, "a");
    assert_eq!(
        target.destination,
        Destination::new(Some("u"), "1.2.3.4", Some(99)).unwrap()
    );
    assert_eq!(names(&inventory, "h"), ["c"]);
    assert!(Inventory::from_json(b"[]", Path::new("x")).is_err());
}

#[tokio::test]
async fn a_folder_is_merged_with_its_variable_files() {
    let place = Place::new(&[
        ("inv/01-web", "[web]\nw1\nw2 ansible_user=inline\n"),
        ("inv/02-db.yml", "db: {hosts: {d1: }}\n"),
        ("inv/notes.txt", "not an inventory"),
        ("inv/group_vars/all.yml", "ansible_user: everyone\n"),
        ("inv/group_vars/web/main.yml", "ansible_port: 2200\n"),
        (
            "inv/host_vars/d1.yaml",
            "---\nansible_user: own\nsecret: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  6162\n",
        ),
    ]);
    let inventory = place.load("inv").await.unwrap();
    let destination = |name| only(&inventory, name).destination.to_string();
    assert_eq!(destination("w1"), "ssh://everyone@w1:2200");
    assert_eq!(destination("w2"), "ssh://inline@w2:2200");
    assert_eq!(destination("d1"), "own@d1");
}

#[tokio::test]
async fn scripts_are_asked_with_and_without_meta() {
    let place = Place::new(&[
        (
            "with",
            "#!/bin/sh\necho '{\"_meta\": {\"hostvars\": {\"a\": {\"ansible_user\": \"u\"}}}, \"g\": [\"a\"]}'\n",
        ),
        (
            "without",
            "#!/bin/sh\nif [ \"$1\" = --host ]; then echo \"{\\\"ansible_user\\\": \\\"$2\\\"}\"; else echo '{\"g\": [\"b\"]}'; fi\n",
        ),
        ("broken", "#!/bin/sh\necho no credentials >&2\nexit 3\n"),
    ]);
    let inventory = Inventory::load(&["with".into(), "without".into()], &place.world)
        .await
        .unwrap();
    assert_eq!(names(&inventory, "g"), ["a", "b"]);
    assert_eq!(only(&inventory, "b").destination.user.as_deref(), Some("b"));
    let error = place.load("broken").await.unwrap_err().to_string();
    assert!(error.contains("no credentials"), "{error}");
}

#[tokio::test]
async fn what_only_ansible_reads_is_given_to_it_or_told() {
    let files = [
        ("aws.yml", "plugin: amazon.aws.aws_ec2\n"),
        ("vaulted", "$ANSIBLE_VAULT;1.1;AES256\n6162\n"),
    ];
    let place = Place::new(&files);
    for name in ["aws.yml", "vaulted"] {
        let error = place.load(name).await.unwrap_err();
        assert!(matches!(error, InventoryError::NeedsAnsible { .. }), "{error}");
    }
    let ansible = "#!/bin/sh\necho '{\"_meta\": {\"hostvars\": {}}, \"cloud\": {\"hosts\": [\"i-1\"]}}'\n";
    let place = Place::new(&[files[0], ("bin/ansible-inventory", ansible)]);
    assert_eq!(names(&place.load("aws.yml").await.unwrap(), "cloud"), ["i-1"]);
}

#[test]
fn a_host_that_ssh_cannot_reach_is_told_apart() {
    let inventory =
        ini("a ansible_connection=local\nb ansible_host='{{ ip }}'\nc ansible_port=many\nd\n-e\n");
    let selection = inventory.select("all", None).unwrap();
    assert_eq!(selection.targets.len(), 1);
    let why: Vec<_> = selection
        .skipped
        .iter()
        .map(|skipped| skipped.why.as_str())
        .collect();
    assert!(
        why[0].contains("local") && why[1].contains("template") && why[2].contains("not a port number"),
        "{why:?}"
    );
    assert_eq!(why.len(), 4);
}

#[test]
fn errors_name_file_and_line() {
    for (text, line) in [
        ("a\nb c\n", 2),
        ("[g:odd]\n", 1),
        ("[g:vars]\nx\n", 2),
        ("a 'b\n", 1),
        ("n[2:1]\n", 1),
    ] {
        let error = ini::read(&mut Inventory::default(), text, Path::new("hosts")).unwrap_err();
        assert!(
            error.to_string().starts_with(&format!("hosts:{line}: ")),
            "{text:?}: {error}"
        );
    }
}

#[test]
fn circles_of_groups_end() {
    let inventory = ini("[a]\nx\n[a:children]\nb\n[b:children]\na\n[c]\ny\n[c:children]\na\n");
    assert_eq!(names(&inventory, "b"), ["x"]);
    assert_eq!(names(&inventory, "all"), ["x", "y"]);
}

#[test]
fn ranges_are_bounded() {
    assert!(expand_ranges("n[0:999999999]").is_err());
    assert!(expand_ranges("n[0:9999][0:9999]").is_err());
    assert_eq!(expand_ranges("n[0:10:5]").unwrap(), ["n0", "n5", "n10"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn no_text_panics(text in any::<String>(), near in "[ab\\[\\]:=\\n '\"#0-9]{0,40}", pattern in "[ab!&~:,*?\\[\\]0-9(-]{0,12}") {
        for text in [&text, &near] {
            let mut inventory = Inventory::default();
            let file = Path::new("x");
            let _ = ini::read(&mut inventory, text, file);
            let _ = tree::read_yaml(&mut inventory, text, file);
            let _ = tree::read_list(&mut inventory, text.as_bytes(), file);
            let _ = inventory.select(&pattern, Some(&pattern));
        }
    }
}
