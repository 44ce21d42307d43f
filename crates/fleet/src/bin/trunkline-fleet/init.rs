//! `trunkline fleet init` and `trunkline fleet key`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use trunkline_control::place::Place;
use trunkline_fleet::allow::Rule;
use trunkline_fleet::bucket::{Bucket, Charter};
use trunkline_fleet::state::Zones;
use trunkline_fleet::submitting;

use crate::paths;
use crate::say;
use crate::settings::Settings;
use crate::status::print as tell;

/// Arguments of `trunkline fleet init`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// NATS: nats://HOST:4222 or tls://HOST:4222, several with commas between them. Taken from fleet.toml if that is
    /// there.
    url: Option<String>,
    /// A site and a pattern of the host names that belong there (eu=*.eu); may be given several times. Its hosts are
    /// reached by nodes of that site only.
    #[arg(long = "site", value_name = "SITE=PATTERN")]
    sites: Vec<String>,
    /// Trust these certificate authorities (PEM) as well as the system's, for a NATS certificate of an authority of your own.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// For how many days jobs, their results and their output are kept.
    #[arg(long, value_name = "DAYS", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=3650))]
    keep_days: u32,
    /// On how many servers of a NATS cluster everything is kept: 1, 3 or 5.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=5))]
    replicas: u8,
    /// Put a new fleet in the place of the one of this name, which is frozen or not wanted any more. Gives up its jobs, their
    /// results and their output. Its nodes must have ended.
    #[arg(long)]
    anew: bool,
}

/// Makes a fleet, and prints the next steps.
pub(crate) async fn run(place: &Place, args: Args) -> anyhow::Result<()> {
    let zones = Zones {
        sites: sites(&args.sites)?,
        ..Zones::default()
    };
    let known = Settings::read(place)?;
    let is_new = known.is_none();
    let mut settings = match (known, args.url) {
        (Some(known), Some(url)) if known.url != url => bail!(
            "{} names the fleet at {}, not {url}: remove it, or leave out the address",
            paths::settings(place).display(),
            known.url
        ),
        (Some(known), _) => known,
        (None, Some(url)) => Settings::new(url),
        (None, None) => bail!("which NATS? Name its address: trunkline fleet init nats://HOST:4222"),
    };
    settings.trust(args.ca)?;
    let key = settings.key(place)?.public_key();
    let charter = Charter::new(zones, Duration::from_secs(u64::from(args.keep_days) * 86_400));
    let access = settings.access(place)?;
    if args.anew {
        submitting::remove(&access).await?;
        tell(
            "The former fleet is removed, with its jobs, their results and their output. What ran in it may have run, and \
              is not run again.\n",
        )?;
    }
    let bucket = Bucket::create(&access, charter, args.replicas.into()).await?;
    if let Some(warning) = bucket.cluster_warning().filter(|_| args.replicas > 1) {
        say(&format!("warning: {warning}"));
    }
    if is_new {
        settings.allow.push(Rule {
            submitters: vec![key.clone()],
            hosts: vec!["*".into()],
            users: Vec::new(),
            ports: Vec::new(),
            subjects: Vec::new(),
        });
        settings.write_new(place)?;
    }
    tell(&format!(
        "The fleet {prefix} is made. This machine's settings are {file}.\n\n\
         On each machine that is to be a node:\n    trunkline fleet join {url}{ca} --allow {key}\n\
         Then, here:\n    trunkline run --fleet -H HOSTS COMMAND\n",
        prefix = settings.prefix,
        file = paths::settings(place).display(),
        url = settings.url,
        ca = settings.ca.as_ref().map_or("", |_| " --ca FILE"),
    ))
}

fn sites(typed: &[String]) -> anyhow::Result<BTreeMap<String, Vec<String>>> {
    let mut sites = BTreeMap::<String, Vec<String>>::new();
    for one in typed {
        let (site, pattern) = one
            .split_once('=')
            .with_context(|| format!("{one:?} is not a site and a pattern, such as eu=*.eu"))?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        ensure!(
            !site.is_empty() && site.chars().all(is_plain) && !pattern.is_empty(),
            "{one:?} is not a site (letters, digits and -) and a pattern, such as eu=*.eu"
        );
        sites.entry(site.to_owned()).or_default().push(pattern.to_owned());
    }
    Ok(sites)
}

/// Prints the public key.
pub(crate) fn key(place: &Place) -> anyhow::Result<()> {
    let settings = Settings::read(place)?.unwrap_or_default();
    tell(&format!("{}\n", settings.key(place)?.public_key()))
}
