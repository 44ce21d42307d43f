//! Help for users who do not know the commands yet.

use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use trunkline_control::place::Place;

/// The answer to `trunkline` alone before its first use.
const THREE_THINGS: &str = "\
trunkline keeps one SSH connection to each host open, and everything you run
shares it.

Three things to try, with a host of yours in place of HOST:

  trunkline ssh HOST uptime   run it twice: the second time needs no log-in
  trunkline ls                list the connections that are open
  trunkline setup ssh         have your own ssh, git, rsync and Ansible use them

trunkline --help lists all commands.
";

/// Explains an error in the arguments, and ends the process.
pub(crate) fn explain(mut error: clap::Error) -> ! {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        && std::env::args_os().len() == 1
        && is_new()
    {
        eprint!("{THREE_THINGS}");
        std::process::exit(error.exit_code());
    }
    if let Some(host) = taken_for_a_command(&error) {
        let tip = format!("to connect to a host of that name: trunkline ssh {host}");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    if lacks_a_host(&error) {
        error.insert(
            ContextKind::InvalidArg,
            ContextValue::Strings(vec!["<HOST>...".to_owned()]),
        );
    } else if lacks_hosts(&error) {
        let which = "-H HOSTS, -g GROUP or -i FILE".to_owned();
        error.insert(ContextKind::InvalidArg, ContextValue::Strings(vec![which]));
        let tip =
            match std::env::args().find(|word| word.starts_with("nats://") || word.starts_with("tls://")) {
                Some(address) => {
                    format!("--fleet takes no address: `trunkline fleet init {address}` or `join` notes it")
                }
                None => "name the hosts first: trunkline run -H web1,web2 uptime".to_owned(),
            };
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error.exit()
}

/// Returns true if a command that takes hosts got none. clap lists all arguments that could name them.
fn lacks_a_host(error: &clap::Error) -> bool {
    error.kind() == ErrorKind::MissingRequiredArgument
        && matches!(error.get(ContextKind::InvalidArg), Some(ContextValue::Strings(names))
            if names.iter().any(|name| name.contains("<HOST|--hosts <HOSTS>") || name.contains("|HOST|--hosts <HOSTS>")))
}

/// Returns true if `trunkline run` got no hosts. clap lists all arguments that could name them, including those for
/// fleets.
fn lacks_hosts(error: &clap::Error) -> bool {
    error.kind() == ErrorKind::MissingRequiredArgument
        && matches!(error.get(ContextKind::InvalidArg), Some(ContextValue::Strings(names))
            if names.iter().any(|name| name.contains("--hosts <HOSTS>|--group <GROUP>")))
}

/// Returns true if no daemon has run yet for this user.
fn is_new() -> bool {
    let var = |name: &str| std::env::var_os(name).map(PathBuf::from);
    Place::find(var).is_ok_and(|place| !place.state.exists())
}

/// Returns the word in a command's place if it may be a host: it resembles no command, and no command precedes it
/// (`trunkline setup docker`).
fn taken_for_a_command(error: &clap::Error) -> Option<String> {
    if error.kind() != ErrorKind::InvalidSubcommand || error.get(ContextKind::SuggestedSubcommand).is_some() {
        return None;
    }
    let ContextValue::String(word) = error.get(ContextKind::InvalidSubcommand)? else {
        return None;
    };
    let first = std::env::args_os()
        .skip(1)
        .find(|word| !word.as_encoded_bytes().starts_with(b"-"));
    let may_be_host = word
        .parse::<trunkline_request::destination::Destination>()
        .is_ok();
    (may_be_host && first.is_some_and(|first| first == word.as_str())).then(|| word.clone())
}
