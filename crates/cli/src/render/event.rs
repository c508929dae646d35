//! Events of an environment as lines.

use fuse_wire_api::Event;

use super::{style, time};

/// Columns of the state word on a line.
const STATE_WIDTH: usize = 12;

/// A state event where lines are read by programs: `<time>  <state padded>  <url or error>`.
pub(crate) fn line(event: &Event) -> String {
    let detail = if event.error.is_empty() {
        &event.url
    } else {
        &event.error
    };
    let padding = " ".repeat(STATE_WIDTH.saturating_sub(event.state.chars().count()));
    let state = style::state(&event.state);
    let text = format!(
        "{}  {state}{padding} {detail}",
        time::stamp(event.updated_at)
    );
    text.trim_end().to_owned()
}

/// A state event on a terminal: `  <time>  <state>[  <url>][  <error>]`.
pub(crate) fn live_line(event: &Event) -> String {
    let mut text = format!(
        "  {}  {}",
        time::stamp(event.updated_at),
        style::state(&event.state)
    );
    for detail in [&event.url, &event.error] {
        if !detail.is_empty() {
            text.push_str("  ");
            text.push_str(detail);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(state: &str, url: &str, error: &str) -> Event {
        let at = "2026-01-15T10:00:00Z".parse().unwrap();
        let mut event = Event::state("1".into(), "fuse-a".into(), state, at);
        event.url = url.into();
        event.error = error.into();
        event
    }

    fn without_time(text: &str, event: &Event) -> String {
        anstream::adapter::strip_str(text)
            .to_string()
            .replace(&time::stamp(event.updated_at), "T")
    }

    #[test]
    fn lines() {
        let booting = event("provisioning", "", "");
        assert_eq!(without_time(&line(&booting), &booting), "T  provisioning");
        let running = event("running", "1.2.3.4:19551", "");
        assert_eq!(
            without_time(&line(&running), &running),
            "T  running      1.2.3.4:19551"
        );
        assert_eq!(
            without_time(&live_line(&running), &running),
            "  T  running  1.2.3.4:19551"
        );
        let failed = event("failed", "1.2.3.4:19551", "boot timed out");
        assert_eq!(
            without_time(&line(&failed), &failed),
            "T  failed       boot timed out"
        );
        assert_eq!(
            without_time(&live_line(&failed), &failed),
            "  T  failed  1.2.3.4:19551  boot timed out"
        );
    }
}
