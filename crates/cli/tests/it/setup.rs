//! `trunkline setup` and `trunkline up`, with the stock programs that they are for.

mod files;
mod log_ins;
mod masters;
mod prompts;
mod sharing;
mod stanza;
mod strict;
mod up;
