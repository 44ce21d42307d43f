//! Updates of the daemon or of a fleet as server-sent events: `connected`, `update` with an update as JSON, `lost` with the reason.

use std::convert::Infallible;

use futures_util::Stream;
use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::feed;
use crate::fleet::feed::FleetNews;

/// Reports about something that is watched.
pub(super) trait News {
    /// It is told from the beginning, an update, or why nothing is told.
    fn parts(&self) -> Part<'_, impl Serialize>;
}

/// One of the three.
pub(super) enum Part<'a, U> {
    Connected,
    Update(&'a U),
    Lost(&'a str),
}

impl News for feed::News {
    fn parts(&self) -> Part<'_, impl Serialize> {
        match self {
            Self::Connected => Part::Connected,
            Self::Update(update) => Part::Update(&**update),
            Self::Lost(why) => Part::Lost(why),
        }
    }
}

impl News for FleetNews {
    fn parts(&self) -> Part<'_, impl Serialize> {
        match self {
            Self::Connected => Part::Connected,
            Self::Update(update) => Part::Update(&**update),
            Self::Lost(why) => Part::Lost(why),
        }
    }
}

/// One page's events, for as long as it listens. `turn` is its place among the pages.
pub(super) fn body<N: News + Send>(
    news: mpsc::Receiver<N>,
    turn: OwnedSemaphorePermit,
) -> StreamBody<impl Stream<Item = Result<Frame<Bytes>, Infallible>>> {
    StreamBody::new(futures_util::stream::unfold(
        (news, turn),
        |(mut news, turn)| async move {
            let told = news.recv().await?;
            Some((Ok(Frame::data(event(&told).into())), (news, turn)))
        },
    ))
}

fn event(news: &impl News) -> String {
    let lost = |why: &str| ("lost", serde_json::Value::from(why).to_string());
    let (name, data) = match news.parts() {
        Part::Connected => ("connected", "null".into()),
        Part::Lost(why) => lost(why),
        Part::Update(update) => match serde_json::to_string(update) {
            Ok(json) => ("update", json),
            Err(error) => lost(&error.to_string()),
        },
    };
    format!("event: {name}\ndata: {data}\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::{host, moment};

    #[test]
    fn an_event_is_one_line_of_json_whatever_names_there_are() {
        let update = moment(1, vec![host("a\nevent: b\n\n</script>", 1)]);
        let text = event(&feed::News::Update(Box::new(update)));
        let data = text
            .strip_prefix("event: update\ndata: ")
            .unwrap()
            .strip_suffix("\n\n")
            .unwrap();
        assert!(!data.contains('\n'));
        let update: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!(update["hosts"][0]["name"], "a\nevent: b\n\n</script>");
        assert_eq!(
            event(&feed::News::Lost("a\n\"b\"".into())),
            "event: lost\ndata: \"a\\n\\\"b\\\"\"\n\n"
        );
    }
}
