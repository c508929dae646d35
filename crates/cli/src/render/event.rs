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

/// A state event on a terminal: `  <time>  <state>[  <url>][  <error>]`. With `room`, of an error only what a line
/// of so many columns has room for.
pub(crate) fn live_line(event: &Event, room: Option<usize>) -> String {
    let stamp = time::stamp(event.updated_at);
    let mut text = format!("  {stamp}  {}", style::state(&event.state));
    if !event.url.is_empty() {
        text.push_str(&format!("  {}", event.url));
    }
    if !event.error.is_empty() {
        text.push_str("  ");
        let before = anstream::adapter::strip_str(&text)
            .to_string()
            .chars()
            .count();
        let room = room.map(|room| room.saturating_sub(before));
        text.push_str(&cut(&event.error, room));
    }
    text
}

/// The first line of a text, and of that what there is room for, if it does not fit.
fn cut(text: &str, room: Option<usize>) -> String {
    let Some(room) = room else {
        return text.to_owned();
    };
    let line = text.lines().next().unwrap_or_default();
    if line.len() == text.len() && line.chars().count() <= room {
        return line.to_owned();
    }
    let head: String = line.chars().take(room.saturating_sub(1)).collect();
    format!("{}…", head.trim_end())
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
            without_time(&live_line(&running, None), &running),
            "  T  running  1.2.3.4:19551"
        );
        let failed = event("failed", "1.2.3.4:19551", "boot timed out");
        assert_eq!(
            without_time(&line(&failed), &failed),
            "T  failed       boot timed out"
        );
        assert_eq!(
            without_time(&live_line(&failed, None), &failed),
            "  T  failed  1.2.3.4:19551  boot timed out"
        );
        let room = |columns| {
            let text = live_line(&failed, Some(columns));
            let text = anstream::adapter::strip_str(&text).to_string();
            assert!(text.chars().count() <= columns, "{text}");
            without_time(&text, &failed)
        };
        assert_eq!(room(80), "  T  failed  1.2.3.4:19551  boot timed out");
        assert_eq!(room(54), "  T  failed  1.2.3.4:19551  boot timed…");
        let long = event("failed", "", "step 2\nmake: no rule");
        let text = without_time(&live_line(&long, Some(80)), &long);
        assert_eq!(text, "  T  failed  step 2…");
    }
}
