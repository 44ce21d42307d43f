//! The program that the servers of `bench/event_loop` run: writes blocks to standard output, at a rate or as fast as
//! they are taken.
//!
//! `bench-stream SIZE [PER_SECOND]`: every block is a write of its own and ends a line. What is due comes in bursts, 100
//! times a second, as the lines of a log do.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Context as _;

const BURSTS: f64 = 100.0;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let size: usize = arguments.next().context("SIZE is missing")?.parse()?;
    let per_second: Option<f64> = arguments.next().map(|rate| rate.parse()).transpose()?;
    let mut block = vec![b'x'; size];
    *block.last_mut().context("SIZE is 0")? = b'\n';
    // Standard output itself would gather lines.
    let mut output = File::from(std::io::stdout().as_fd().try_clone_to_owned()?);

    let begun = Instant::now();
    let mut written = 0.0;
    loop {
        if let Some(rate) = per_second {
            let due = begun.elapsed().as_secs_f64() * rate;
            if written >= due {
                let burst = Duration::from_secs_f64((1.0 / BURSTS).max(1.0 / rate));
                sleep(burst);
                continue;
            }
        }
        // Whoever reads has gone: that is the end.
        if output.write_all(&block).is_err() {
            return Ok(());
        }
        written += 1.0;
    }
}
