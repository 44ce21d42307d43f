//! `trunkline setup mcp`: an entry in a client's configuration with which it starts `trunkline mcp`. It includes the
//! necessary environment, since clients pass on only six variables.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstObject, CstRootNode};
use trunkline_request::own;

/// Arguments of `trunkline setup mcp`.
#[derive(Debug, clap::Args)]
#[command(name = "trunkline setup mcp", bin_name = "trunkline setup mcp")]
pub(crate) struct Args {
    /// Whose configuration.
    #[arg(value_enum)]
    client: Client,
    /// Print what would be written, and change nothing.
    #[arg(long)]
    print: bool,
    /// Remove what was written.
    #[arg(long, conflicts_with = "print")]
    undo: bool,
    /// Change this file instead of the usual one.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Client {
    ClaudeCode,
    ClaudeDesktop,
    Codex,
    Cursor,
    Gemini,
    Vscode,
    Windsurf,
    Zed,
}

/// The variables that affect which daemon is found, which agent is asked, and what is sent to hosts.
const NEEDED: [&str; 9] = [
    "SSH_AUTH_SOCK",
    "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME",
    "XDG_STATE_HOME",
    "XDG_CACHE_HOME",
    "LANG",
    "LC_ALL",
    "TRUNKLINE_DIR",
    "TRUNKLINED",
];

const NAME: &str = "trunkline";
const BEGIN: &str = "# Begin: trunkline setup mcp\n";
const END: &str = "# End: trunkline setup mcp\n";

impl Client {
    /// Returns the client's file, and the object in it with the servers.
    fn place(self) -> (&'static str, &'static str) {
        match self {
            Self::ClaudeCode => (".claude.json", "mcpServers"),
            Self::ClaudeDesktop if cfg!(target_os = "macos") => (
                "Library/Application Support/Claude/claude_desktop_config.json",
                "mcpServers",
            ),
            Self::ClaudeDesktop => (".config/Claude/claude_desktop_config.json", "mcpServers"),
            Self::Codex => (".codex/config.toml", ""),
            Self::Cursor => (".cursor/mcp.json", "mcpServers"),
            Self::Gemini => (".gemini/settings.json", "mcpServers"),
            Self::Vscode if cfg!(target_os = "macos") => {
                ("Library/Application Support/Code/User/mcp.json", "servers")
            }
            Self::Vscode => (".config/Code/User/mcp.json", "servers"),
            Self::Windsurf => (".codeium/windsurf/mcp_config.json", "mcpServers"),
            Self::Zed => (".config/zed/settings.json", "context_servers"),
        }
    }
}

/// The command and the environment for the client.
struct Server {
    command: String,
    env: BTreeMap<&'static str, String>,
}

/// Writes the entry, prints it, or removes it.
///
/// # Errors
/// The file cannot be changed without losing something.
pub(crate) fn main(args: &Args, rules: &Path) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    let (usual, object) = args.client.place();
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let path = match (&args.file, home) {
        (Some(file), _) => file.clone(),
        (None, Some(home)) => home.join(usual),
        (None, None) => bail!("HOME is not set: name the file with --file"),
    };
    // For a link, its target is changed.
    let path = path.canonicalize().unwrap_or(path);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
    };
    let server = server()?;
    let entry = (!args.undo).then_some(&server);
    let changed = match args.client {
        Client::Codex => changed_toml(&text, entry),
        _ => changed_json(&text, object, entry),
    };
    let changed = changed.with_context(|| format!("{} was not changed", path.display()))?;
    let shown = path.display();
    if args.print {
        let entry = match args.client {
            Client::Codex => toml_block(&server),
            _ => changed_json("", object, entry)?,
        };
        write!(out, "# in {shown}\n{entry}")?;
        return Ok(());
    }
    if changed == text {
        let has = if args.undo {
            "has no entry"
        } else {
            "already has the entry"
        };
        writeln!(out, "{shown} {has} of trunkline")?;
        return Ok(());
    }
    replace(&path, &changed).with_context(|| format!("writing {shown}"))?;
    if args.undo {
        writeln!(out, "removed trunkline's entry from {shown}")?;
        return Ok(());
    }
    writeln!(out, "added trunkline to {shown}; start the client anew")?;
    if !rules.exists() {
        writeln!(
            out,
            "nothing is allowed yet: write the rules in {} (see the guide on MCP)",
            rules.display()
        )?;
    }
    if !server.env.contains_key("SSH_AUTH_SOCK") {
        writeln!(
            out,
            "SSH_AUTH_SOCK is not set here, so no agent will be asked for keys"
        )?;
    }
    Ok(())
}

fn server() -> anyhow::Result<Server> {
    let this = std::env::current_exe().context("finding this program's path")?;
    // The name on PATH stays valid after an update. This program is beside it, or in its libexec.
    let directory = this.parent().unwrap_or(Path::new("/"));
    let prefix = directory.parent().and_then(Path::parent).unwrap_or(directory);
    let near = [directory.join(NAME), prefix.join("bin").join(NAME)];
    let command = near
        .into_iter()
        .find(|file| file.is_file())
        .context("trunkline is not beside this program")?;
    let command = command
        .to_str()
        .context("this program's path is not UTF-8")?
        .to_owned();
    let env = NEEDED
        .iter()
        .filter_map(|name| Some((*name, std::env::var(name).ok().filter(|value| !value.is_empty())?)));
    Ok(Server {
        command,
        env: env.collect(),
    })
}

/// Returns the text with the new entry, or without one for `None`. Everything else stays, including comments.
fn changed_json(text: &str, object: &str, server: Option<&Server>) -> anyhow::Result<String> {
    let begin = if text.trim().is_empty() { "{}\n" } else { text };
    let root = CstRootNode::parse(begin, &ParseOptions::default())?;
    let Some(top) = root.object_value() else {
        bail!("it is not an object");
    };
    let Some(server) = server else {
        let Some(servers) = top.object_value(object) else {
            return Ok(text.to_owned());
        };
        let Some(entry) = servers.get(NAME) else {
            return Ok(text.to_owned());
        };
        entry.remove();
        if servers.properties().is_empty()
            && let Some(property) = top.get(object)
        {
            property.remove();
        }
        return Ok(root.to_string());
    };
    let servers: CstObject = match top.get(object) {
        None => top.object_value_or_set(object),
        Some(_) => top
            .object_value(object)
            .with_context(|| format!("{object} is not an object"))?,
    };
    let string = |text: &str| CstInputValue::String(text.to_owned());
    let env = server
        .env
        .iter()
        .map(|(name, value)| ((*name).to_owned(), string(value)));
    let value = CstInputValue::Object(vec![
        ("command".into(), string(&server.command)),
        ("args".into(), CstInputValue::Array(vec![string("mcp")])),
        ("env".into(), CstInputValue::Object(env.collect())),
    ]);
    match servers.get(NAME) {
        Some(entry) => entry.set_value(value),
        None => drop(servers.append(NAME, value)),
    }
    Ok(root.to_string())
}

fn toml_block(server: &Server) -> String {
    // TOML's basic strings have the same escapes as JSON's.
    let string = |text: &str| serde_json::Value::from(text).to_string();
    let mut block = format!(
        "{BEGIN}[mcp_servers.{NAME}]\ncommand = {}\nargs = [\"mcp\"]\n",
        string(&server.command)
    );
    if !server.env.is_empty() {
        block.push_str(&format!("\n[mcp_servers.{NAME}.env]\n"));
        for (name, value) in &server.env {
            block.push_str(&format!("{name} = {}\n", string(value)));
        }
    }
    block + END
}

fn changed_toml(text: &str, server: Option<&Server>) -> anyhow::Result<String> {
    let without = match (text.find(BEGIN), text.find(END)) {
        (Some(begin), Some(end)) if begin < end => {
            let before = text[..begin].strip_suffix('\n').unwrap_or(&text[..begin]);
            format!("{before}{}", &text[end + END.len()..])
        }
        (None, None) => text.to_owned(),
        _ => bail!("the lines that mark what trunkline wrote are not in order: remove them"),
    };
    let Some(server) = server else {
        return Ok(without);
    };
    // A table at the end does not affect those before it.
    let with = match without.is_empty() {
        true => format!("\n{}", toml_block(server)),
        false => format!("{without}\n{}", toml_block(server)),
    };
    let parsed: Result<toml::Table, _> = toml::from_str(&with);
    parsed.map_err(|error| anyhow::anyhow!("{error}"))?;
    Ok(with)
}

/// Replaces a file atomically, keeping its permissions.
fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let directory = path.parent().context("it has no directory")?;
    if !directory.exists() {
        own::make_directory(directory)?;
    }
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    file.write_all(text.as_bytes())?;
    if let Ok(metadata) = std::fs::metadata(path) {
        file.as_file().set_permissions(metadata.permissions())?;
    }
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> Server {
        Server {
            command: "/usr/bin/trunkline".into(),
            env: [("SSH_AUTH_SOCK", "/run/a \"b\"".to_owned())].into(),
        }
    }

    #[test]
    fn an_entry_is_added_and_removed_and_all_else_stays() {
        for text in [
            "{\n  // mine\n  \"theme\": \"dark\", // and this\n  \"mcpServers\": {\n    \"other\": {\n      \"command\": \"x\"\n    }\n  }\n}\n",
            "{\n  \"mcpServers\": {\n    \"other\": {}\n  },\n  \"z\": 1.50\n}\n",
            "{\n  \"a\": [1, 2]\n}\n",
        ] {
            let with = changed_json(text, "mcpServers", Some(&server())).unwrap();
            let parsed: serde_json::Value =
                jsonc_parser::parse_to_serde_value(&with, &ParseOptions::default()).unwrap();
            let entry = &parsed["mcpServers"]["trunkline"];
            assert_eq!(entry["command"], "/usr/bin/trunkline", "{with}");
            assert_eq!(entry["args"][0], "mcp");
            assert_eq!(entry["env"]["SSH_AUTH_SOCK"], "/run/a \"b\"");
            assert_eq!(changed_json(&with, "mcpServers", Some(&server())).unwrap(), with);
            assert_eq!(changed_json(&with, "mcpServers", None).unwrap(), text);
            assert_eq!(changed_json(text, "mcpServers", None).unwrap(), text);
        }
        assert!(changed_json("[]", "mcpServers", Some(&server())).is_err());
        assert!(changed_json("{\"mcpServers\": 1}", "mcpServers", Some(&server())).is_err());
        assert!(changed_json("{ nonsense", "mcpServers", Some(&server())).is_err());
    }

    #[test]
    fn a_block_is_added_and_removed() {
        for text in ["", "model = \"x\"\n", "[a]\nb = 1\n\n"] {
            let with = changed_toml(text, Some(&server())).unwrap();
            let parsed: toml::Table = toml::from_str(&with).unwrap();
            assert_eq!(
                parsed["mcp_servers"]["trunkline"]["env"]["SSH_AUTH_SOCK"].as_str(),
                Some("/run/a \"b\"")
            );
            assert_eq!(changed_toml(&with, Some(&server())).unwrap(), with);
            assert_eq!(changed_toml(&with, None).unwrap(), text);
        }
        assert!(changed_toml("[mcp_servers.trunkline]\ncommand = \"x\"\n", Some(&server())).is_err());
    }
}
