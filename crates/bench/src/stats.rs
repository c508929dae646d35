//! Order statistics of durations.

use std::time::Duration;

/// Durations of one series, sorted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Series(Vec<Duration>);

impl Series {
    /// Sorts `samples`.
    pub(crate) fn new(mut samples: Vec<Duration>) -> Self {
        samples.sort_unstable();
        Self(samples)
    }

    /// The sample below which `percent` of all lie, in milliseconds; 0 for an empty series.
    pub(crate) fn percentile_ms(&self, percent: usize) -> f64 {
        let index = (self.0.len() * percent / 100).min(self.0.len().saturating_sub(1));
        self.0.get(index).map_or(0.0, |d| d.as_secs_f64() * 1_000.0)
    }

    /// Median in milliseconds.
    pub(crate) fn p50_ms(&self) -> f64 {
        self.percentile_ms(50)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles() {
        let series = Series::new((1..=100).rev().map(Duration::from_millis).collect());
        assert!((series.p50_ms() - 51.0).abs() < 1e-9);
        assert!((series.percentile_ms(99) - 100.0).abs() < 1e-9);
        assert!(Series::default().p50_ms().abs() < 1e-9);
    }
}
