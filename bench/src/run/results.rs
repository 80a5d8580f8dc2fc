//! The raw results of a run: a JSON file, medians and spreads.

use super::contest::Figures;
use crate::worker::Failure;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

const FILE: &str = "results.json";

/// Everything that a run has found.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) machine: Value,
    pub(crate) settings: Value,
    /// Of the servers.
    pub(crate) versions: BTreeMap<String, String>,
    pub(crate) proofs: Vec<Proof>,
    pub(crate) entries: Vec<Entry>,
}

/// One lock in one row.
#[derive(Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) row: String,
    pub(crate) lock: String,
    pub(crate) rounds: Vec<Figures>,
    /// Figures that were counted apart, because counting is in the way.
    pub(crate) counted: Figures,
    /// Why there is nothing.
    pub(crate) not_run: Option<String>,
}

/// Whether a lock kept others out.
#[derive(Serialize, Deserialize)]
pub(crate) struct Proof {
    pub(crate) lock: String,
    pub(crate) found: u64,
    pub(crate) wanted: u64,
    pub(crate) not_run: Option<String>,
}

impl Results {
    /// What is in the folder; nothing in a new one.
    pub(crate) fn read(folder: &Path) -> Result<Results, Failure> {
        let file = folder.join(FILE);
        if !file.exists() {
            return Ok(Results::default());
        }
        Ok(serde_json::from_str(&std::fs::read_to_string(file)?)?)
    }

    pub(crate) fn write(&self, folder: &Path) -> Result<(), Failure> {
        std::fs::write(folder.join(FILE), serde_json::to_string_pretty(self)? + "\n")?;
        Ok(())
    }

    pub(crate) fn entry(&self, row: &str, lock: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.row == row && entry.lock == lock)
    }

    /// The median of a figure.
    pub(crate) fn median(&self, row: &str, lock: &str, figure: &str) -> Option<f64> {
        self.entry(row, lock)?.median(figure)
    }
}

impl Entry {
    pub(crate) fn new(row: &str, lock: &str) -> Entry {
        Entry { row: row.into(), lock: lock.into(), rounds: Vec::new(), counted: Figures::new(), not_run: None }
    }

    fn sorted(&self, figure: &str) -> Vec<f64> {
        let mut all: Vec<f64> = self.rounds.iter().filter_map(|round| round.get(figure).copied()).collect();
        all.sort_by(f64::total_cmp);
        all
    }

    pub(crate) fn median(&self, figure: &str) -> Option<f64> {
        if let Some(counted) = self.counted.get(figure) {
            return Some(*counted);
        }
        let all = self.sorted(figure);
        let half = all.len() / 2;
        match all.len() {
            0 => None,
            odd if odd % 2 == 1 => Some(all[half]),
            _ => Some((all[half - 1] + all[half]) / 2.0),
        }
    }

    /// The least and the most.
    pub(crate) fn spread(&self, figure: &str) -> Option<(f64, f64)> {
        let all = self.sorted(figure);
        Some((*all.first()?, *all.last()?))
    }
}
