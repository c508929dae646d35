//! Services as lines, in the columns of the build steps.

use fuse_wire_api::Event;
use owo_colors::OwoColorize as _;

use super::{steps::fit, time};

/// What became of a service: `  UP     service db: healthy   4.2s`.
pub(crate) fn line(event: &Event) -> String {
    let verdict = match event.status.as_str() {
        "started" | "healthy" => "UP    ".green().to_string(),
        "exited" => "DONE  ".to_owned(),
        "unhealthy" | "failed" => "FAILED".red().to_string(),
        _ => "      ".to_owned(),
    };
    let mut label = format!("{}: {}", event.service, event.status);
    if event.exit_code != 0 {
        label = format!("{label}, exit code {}", event.exit_code);
    }
    let took = time::duration_ms(event.duration_ms);
    format!("  {verdict} service {} {took:>7}", fit(&label))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let at = "2026-01-15T10:00:00Z".parse().unwrap();
        let mut event = Event::state("1".into(), "fuse-a".into(), "", at);
        event.service = "db".into();
        event.duration_ms = 4210;
        let mut shown = |status: &str, exit_code| {
            event.status = status.into();
            event.exit_code = exit_code;
            anstream::adapter::strip_str(&line(&event)).to_string()
        };
        let label = |text| format!("{text:<48}    4.2s");
        assert_eq!(
            shown("healthy", 0),
            format!("  UP     service {}", label("db: healthy"))
        );
        assert_eq!(
            shown("exited", 0),
            format!("  DONE   service {}", label("db: exited"))
        );
        assert_eq!(
            shown("failed", 3),
            format!("  FAILED service {}", label("db: failed, exit code 3"))
        );
        assert_eq!(
            shown("paused", 0),
            format!("         service {}", label("db: paused"))
        );
    }
}
