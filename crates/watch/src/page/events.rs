//! Updates as server-sent events: `connected`, `update` with JSON, `lost` with the reason.

use std::convert::Infallible;

use futures_util::Stream;
use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::feed::News;

/// Returns one page's events, while it listens. `turn` is its permit among the pages.
pub(super) fn body<U: Serialize + Send>(
    news: mpsc::Receiver<News<U>>,
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

fn event<U: Serialize>(news: &News<U>) -> String {
    let lost = |why: &str| ("lost", serde_json::Value::from(why).to_string());
    let (name, data) = match news {
        News::Connected => ("connected", "null".into()),
        News::Lost(why) => lost(why),
        News::Update(update) => match serde_json::to_string(update) {
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
        let text = event(&News::Update(Box::new(update)));
        let data = text
            .strip_prefix("event: update\ndata: ")
            .unwrap()
            .strip_suffix("\n\n")
            .unwrap();
        assert!(!data.contains('\n'));
        let update: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!(update["hosts"][0]["name"], "a\nevent: b\n\n</script>");
        assert_eq!(
            event(&News::<()>::Lost("a\n\"b\"".into())),
            "event: lost\ndata: \"a\\n\\\"b\\\"\"\n\n"
        );
    }
}
