//! Any sequence of what an application, a network and a server do to the channels of a connection; then any messages.

use bytes::Bytes;
use trunkline_proto::channels::Channels;
use trunkline_proto::{ChannelEvent, ChannelKind};

#[allow(dead_code, reason = "the tests use all of it")]
#[path = "../../crates/proto/tests/it/channels/model.rs"]
mod model;

type Input = (bool, Vec<(u8, u8, u16)>, Vec<Vec<u8>>);

pub(crate) fn fuzz(input: Input) {
    let (sshd, steps, messages) = input;
    let mut checked = model::Model::new(sshd);
    for step in steps {
        checked.apply(model::Step::from_numbers(step));
    }
    checked.finish();

    let mut channels = Channels::default();
    for message in messages {
        let id = channels.open(&ChannelKind::Session);
        if channels.handle(&Bytes::from(message)).is_err() {
            return;
        }
        channels.write(id, Bytes::from_static(b"data"));
        while let Some(event) = channels.next_event() {
            if let ChannelEvent::Incoming { id, .. } = event {
                channels.accept(id);
            }
        }
        while channels.next_message().is_some() {}
    }
}
