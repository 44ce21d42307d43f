//! A fleet that is not there: its bucket has nodes that renew, shards, and jobs, so that it can be measured what looking at it
//! costs. Made in the place of whatever fleet has this prefix.
//!
//! ```text
//! cargo run --package trunkline-fleet --example simulated -- nats://127.0.0.1:4222 PREFIX NODES SITES JOBS
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use async_nats::jetstream::kv::Store;
use nkeys::KeyPair;
use trunkline_fleet::bucket::{Access, Bucket, Charter};
use trunkline_fleet::order::OrderedHost;
use trunkline_fleet::order::job::JobTerms;
use trunkline_fleet::state::{
    Claim, Exit, Fate, Holder, JobId, Key, Lease, Member, Returned, Unit, Value, Zones,
};
use trunkline_fleet::submitting;
use trunkline_request::destination::Destination;

/// Hosts of each job.
const HOSTS: u32 = 20;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [servers, prefix, nodes, sites, jobs] = &arguments[..] else {
        anyhow::bail!("simulated SERVERS PREFIX NODES SITES JOBS");
    };
    let (nodes, sites, jobs): (u64, usize, usize) = (nodes.parse()?, sites.parse()?, jobs.parse()?);
    let access = Access {
        servers: servers.clone(),
        prefix: prefix.clone(),
        nkey: None,
        credentials: None,
        authorities: None,
    };
    submitting::remove(&access).await?;
    let zones = Zones {
        sites: (1..=sites)
            .map(|site| (format!("site{site}"), vec![format!("*.site{site}")]))
            .collect::<BTreeMap<_, _>>(),
        ..Zones::default()
    };
    let charter = Charter::new(zones.clone(), Duration::from_secs(7 * 86_400));
    let bucket = Bucket::create(&access, charter, 1).await?;
    let client = async_nats::connect(servers).await?;
    let store = async_nats::jetstream::new(client);
    let store = store.get_key_value(format!("{prefix}-state")).await?;
    let units = zones.sites.keys().map(Some).chain([None]);
    let units: Vec<Unit> = units
        .flat_map(|site| {
            (0..=u8::MAX).map(move |shard| Unit {
                site: site.cloned(),
                shard,
            })
        })
        .collect();
    let key = KeyPair::new_user();
    for number in 0..jobs {
        job(&bucket, &store, &key, number).await?;
    }
    println!("{nodes} nodes, {} shards, {jobs} jobs", units.len());
    // Each renews every 5 s, one after the other.
    let all = nodes as usize + units.len();
    let mut ticks = tokio::time::interval(Duration::from_secs(5) / u32::try_from(all)?);
    loop {
        for node in 0..nodes {
            ticks.tick().await;
            let member = Member {
                holder: Some(holder(node)),
                site: None,
                draining: false,
                running: u32::try_from(node % 7)?,
                trouble: None,
                version: "simulated".into(),
            };
            put(&store, &Key::Member(holder(node).node), &Value::Member(member)).await?;
        }
        for (number, unit) in units.iter().enumerate() {
            ticks.tick().await;
            let holder = Some(holder(number as u64 % nodes));
            put(&store, &Key::Lease(unit.clone()), &Value::Lease(Lease { holder })).await?;
        }
    }
}

/// A job, of which some hosts have failed; the last ones are still under way.
async fn job(bucket: &Bucket, store: &Store, key: &KeyPair, number: usize) -> anyhow::Result<()> {
    let name = |host: u32| format!("web{host}.job{number}");
    let hosts: Option<Vec<_>> = (0..HOSTS)
        .map(|host| {
            Some(OrderedHost {
                name: name(host),
                destination: Destination::parse_hop(&name(host)).ok()?,
                command: b"true".to_vec(),
            })
        })
        .collect();
    let hosts = hosts.context("a host's name")?;
    let job: JobId = submitting::submit(bucket, key, &hosts, JobTerms::default()).await?;
    for host in 0..HOSTS - u32::from(number.is_multiple_of(100)) {
        let claim = Claim {
            holder: holder(0),
            intent: 1,
            fence: 1,
        };
        let exit = Exit::Status(u32::from(host == 0 && number.is_multiple_of(5)));
        let returned = Returned { exit, output: 0 };
        let fate = Value::Fate(Fate::Ended { claim, returned });
        put(store, &Key::Fate(job.clone(), host), &fate).await?;
    }
    Ok(())
}

fn holder(node: u64) -> Holder {
    Holder {
        node: format!("node{node}"),
        incarnation: node,
    }
}

async fn put(store: &Store, key: &Key, value: &Value) -> anyhow::Result<()> {
    let bytes = rmp_serde::to_vec_named(value)?;
    store.put(key.to_string(), bytes.into()).await?;
    Ok(())
}
