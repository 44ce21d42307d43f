//! The screens and the browser of the client's tests.

#[path = "../../../cli/tests/it/watching/browser.rs"]
pub(crate) mod browser;
#[expect(dead_code, reason = "commands of the client's tests; these need some")]
#[path = "../../../cli/tests/it/watching/screen.rs"]
pub(crate) mod screen;
