//! Where an environment went, and why there.

use fuse_wire_api::PlacementExplanation;

/// `placed on host h1`, and what decided, as far as it is known: the pin of the Fusefile, or what the
/// orchestrator said beforehand. A host that it did not foresee was chosen for another reason, such as
/// a layer that could not be used; then only the host is named.
pub(crate) fn line(host: &str, pinned: bool, explained: Option<&PlacementExplanation>) -> String {
    let why = match explained {
        _ if pinned => "pinned by the Fusefile".to_owned(),
        Some(explained) if explained.host_id == host => reason(explained),
        _ => return format!("placed on host {host}"),
    };
    format!("placed on host {host} ({why})")
}

fn reason(explained: &PlacementExplanation) -> String {
    let eligible = explained.hosts.iter().filter(|host| host.eligible).count();
    let has_layer = explained
        .hosts
        .first()
        .is_some_and(|host| host.artifact_local);
    let mut why = match eligible {
        many if has_layer && many > 1 => {
            format!("it has the layer, first of {many} eligible hosts")
        }
        1 => "the only eligible host".to_owned(),
        many => format!("{}, first of {many} eligible hosts", explained.policy),
    };
    if !explained.rejected.is_empty() {
        let gates = explained.rejected.iter();
        let gates: Vec<_> = gates.map(|(gate, n)| format!("{gate} {n}")).collect();
        why += &format!("; turned away: {}", gates.join(", "));
    }
    why
}

#[cfg(test)]
mod tests {
    use fuse_wire_api::PlacementHost;

    use super::*;

    #[test]
    fn a_line_says_what_is_known() {
        let host = |id: &str, eligible| PlacementHost {
            host_id: id.to_owned(),
            eligible,
            ..PlacementHost::default()
        };
        let mut explained = PlacementExplanation {
            policy: "spread".to_owned(),
            host_id: "h1".to_owned(),
            hosts: vec![host("h1", true), host("h2", true)],
            ..PlacementExplanation::default()
        };
        let said = |host, explained: &_| line(host, false, Some(explained));
        assert_eq!(
            said("h1", &explained),
            "placed on host h1 (spread, first of 2 eligible hosts)"
        );
        assert_eq!(said("h2", &explained), "placed on host h2");
        explained.hosts[0].artifact_local = true;
        assert_eq!(
            said("h1", &explained),
            "placed on host h1 (it has the layer, first of 2 eligible hosts)"
        );
        explained.hosts = vec![host("h1", true), host("h2", false), host("h3", false)];
        explained.rejected = [("capacity".to_owned(), 1), ("state".to_owned(), 1)].into();
        assert_eq!(
            said("h1", &explained),
            "placed on host h1 (the only eligible host; turned away: capacity 1, state 1)"
        );
        assert_eq!(line("h1", false, None), "placed on host h1");
        assert_eq!(
            line("h1", true, None),
            "placed on host h1 (pinned by the Fusefile)"
        );
    }
}
