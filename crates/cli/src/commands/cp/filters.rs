//! `--include`, `--exclude` and `--filter-from`, in the order given.

use std::ffi::OsString;
use std::io::Read as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{ArgAction, ArgMatches, Command};
use trunkline_request::copy::FilterRule;

/// The heading of `--help` for the options that choose names.
pub(super) const CHOOSING: &str = "Choosing files";

/// The options in order: the first rule that matches a name decides.
#[derive(Debug, Default, Clone)]
pub(super) struct FilterArgs(Vec<Filter>);

#[derive(Debug, Clone)]
enum Filter {
    Include(OsString),
    Exclude(OsString),
    From(PathBuf),
}

impl FilterArgs {
    pub(super) fn rules(&self) -> anyhow::Result<Vec<FilterRule>> {
        let mut rules = Vec::new();
        for filter in &self.0 {
            let (include, pattern) = match filter {
                Filter::Include(pattern) => (true, pattern),
                Filter::Exclude(pattern) => (false, pattern),
                Filter::From(path) => {
                    let mut file = Vec::new();
                    let read = match path.as_os_str().as_bytes() {
                        b"-" => std::io::stdin().read_to_end(&mut file),
                        _ => std::fs::File::open(path).and_then(|mut opened| opened.read_to_end(&mut file)),
                    };
                    read.with_context(|| format!("reading {}", path.display()))?;
                    FilterRule::read(&file, &mut rules).with_context(|| path.display().to_string())?;
                    continue;
                }
            };
            rules.push(FilterRule {
                include,
                pattern: pattern.clone().into_vec(),
            });
        }
        Ok(rules)
    }
}

impl clap::Args for FilterArgs {
    fn augment_args(command: Command) -> Command {
        let option = |name: &'static str, value: &'static str, help: &'static str| {
            clap::Arg::new(name)
                .help_heading(CHOOSING)
                .long(name)
                .value_name(value)
                .value_parser(clap::value_parser!(OsString))
                .action(ArgAction::Append)
                .help(help)
        };
        command
            .arg(option(
                "exclude",
                "PATTERN",
                "Skip names that match a pattern of rsync's: of all --exclude and --include, the first that matches decides",
            ))
            .arg(option(
                "include",
                "PATTERN",
                "Copy names that match, although an --exclude behind it matches them",
            ))
            .arg(option(
                "filter-from",
                "FILE",
                "Read patterns from a file: \"+ PATTERN\" includes, \"- PATTERN\" excludes, one a line",
            ))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for FilterArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut filters: Vec<(usize, Filter)> = Vec::new();
        for name in ["exclude", "include", "filter-from"] {
            let values = matches.get_many::<OsString>(name).into_iter().flatten();
            let places = matches.indices_of(name).into_iter().flatten();
            filters.extend(places.zip(values).map(|(place, value)| {
                let value = value.clone();
                let filter = match name {
                    "exclude" => Filter::Exclude(value),
                    "include" => Filter::Include(value),
                    _ => Filter::From(value.into()),
                };
                (place, filter)
            }));
        }
        filters.sort_by_key(|(place, _)| *place);
        Ok(Self(filters.into_iter().map(|(_, filter)| filter).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, FromArgMatches as _};

    use super::*;

    #[test]
    fn rules_keep_the_order_in_which_they_were_typed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "- from\n").unwrap();
        let command = FilterArgs::augment_args(Command::new("cp"));
        let path = file.path().to_str().unwrap();
        let words = [
            "cp",
            "--exclude",
            "a",
            "--include",
            "b",
            "--filter-from",
            path,
            "--exclude=c",
        ];
        let matches = command.try_get_matches_from(words).unwrap();
        let rules = FilterArgs::from_arg_matches(&matches).unwrap().rules().unwrap();
        let rules: Vec<_> = rules
            .iter()
            .map(|rule| (rule.include, std::str::from_utf8(&rule.pattern).unwrap()))
            .collect();
        assert_eq!(rules, [(false, "a"), (true, "b"), (false, "from"), (false, "c")]);
    }
}
