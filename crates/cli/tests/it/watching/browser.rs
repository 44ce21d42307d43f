//! Headless Chromium, spoken to over a pipe (its DevTools protocol).

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use serde_json::{Value, json};

use crate::home::{Home, wait_until_or};

/// A browser with one page.
pub(crate) struct Browser {
    child: Child,
    requests: ChildStdin,
    replies: BufReader<ChildStdout>,
    last: u64,
    session: Option<String>,
}

impl Browser {
    /// Opens a page.
    pub(crate) fn open(home: &Home, url: &str) -> Self {
        let profile = home.path("chromium");
        fs::create_dir(&profile).unwrap();
        // It reads from descriptor 3 and writes to 4.
        let line = "exec chromium --headless --no-sandbox --disable-gpu --remote-debugging-pipe \
                    --user-data-dir=\"$0\" 3<&0 4>&1 1>&2";
        let mut command = home.command("sh");
        command.args(["-c", line]).arg(&profile);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut browser = Self {
            requests: child.stdin.take().unwrap(),
            replies: BufReader::new(child.stdout.take().unwrap()),
            child,
            last: 0,
            session: None,
        };
        let made = browser.call("Target.createTarget", &json!({ "url": url }));
        let target = &made["targetId"];
        let attached = browser.call(
            "Target.attachToTarget",
            &json!({ "targetId": target, "flatten": true }),
        );
        browser.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        browser
    }

    /// Calls a method, and returns its result.
    pub(crate) fn call(&mut self, method: &str, parameters: &Value) -> Value {
        let mut reply = self.ask(method, parameters);
        assert!(reply["error"].is_null(), "{method}: {reply}");
        reply["result"].take()
    }

    /// The reply to a method, which may be an error.
    fn ask(&mut self, method: &str, parameters: &Value) -> Value {
        self.last += 1;
        let mut request = json!({ "id": self.last, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            request["sessionId"] = session.as_str().into();
        }
        write!(self.requests, "{request}\0").unwrap();
        loop {
            let mut reply = Vec::new();
            self.replies.read_until(0, &mut reply).unwrap();
            assert!(reply.pop().is_some(), "chromium is needed, and has ended");
            let reply: Value = serde_json::from_slice(&reply).unwrap();
            // Between them are events.
            if reply["id"] == self.last {
                return reply;
            }
        }
    }

    /// The value of an expression in the page.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let parameters = json!({ "expression": expression, "returnByValue": true });
        let mut result = self.call("Runtime.evaluate", &parameters);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].take()
    }

    /// Waits until the page shows a text, and returns all that it shows.
    pub(crate) fn expect(&mut self, wanted: &str) -> String {
        let mut shown = String::new();
        wait_until_or(&format!("the page shows {wanted:?}"), || {
            // There may be no page yet to ask.
            let parameters = json!({ "expression": "document.body?.innerText", "returnByValue": true });
            let reply = self.ask("Runtime.evaluate", &parameters);
            let text = reply["result"]["result"]["value"].as_str();
            shown = text.unwrap_or_default().to_owned();
            if shown.contains(wanted) {
                Ok(())
            } else {
                Err(shown.clone())
            }
        });
        shown
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
