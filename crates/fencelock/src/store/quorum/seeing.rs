//! What others see of a quorum: who is on a majority of the nodes.

use super::Shared;
use super::asking::Answers;
use super::entering::without_number;
use crate::error::Result;
use crate::name::Name;
use crate::store::{BoxStream, Hint, Line, Listed, Scope, Seen};
use futures_util::stream::{FuturesUnordered, StreamExt, select_all, unfold};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

impl Shared {
    /// What a majority answered; all that came in time.
    async fn majority_of<T>(&self, mut answers: Answers<T>) -> Result<Vec<T>> {
        let (mut heard, mut errors) = (Vec::new(), Vec::new());
        while let Some((node, answer)) = answers.next().await {
            match answer {
                Ok(answer) => heard.push(answer),
                Err(error) => errors.push((node, error)),
            }
        }
        if heard.len() >= self.majority() { Ok(heard) } else { Err(self.too_few(heard.len(), &errors)) }
    }

    /// On how many of those that answered somebody must be who may have a majority of all.
    fn enough(&self, answered: usize) -> usize {
        (self.majority() + answered).saturating_sub(self.nodes.len()).max(1)
    }

    pub(super) async fn inspect(self: &Arc<Self>, name: &Name) -> Result<Line> {
        let asked = name.clone();
        let lines = self
            .majority_of(self.ask(move |shared, node| {
                let name = asked.clone();
                async move { shared.nodes[node].inspect(&name).await }
            }))
            .await?;
        let enough = self.enough(lines.len());
        let capacity = lines.iter().map(|line| line.capacity).max().unwrap_or(0);
        // One owner may have several tickets in a line, each a reader: the first of them on one node counts as the first on
        // another.
        let mut inside: BTreeMap<(String, usize), Vec<Seen>> = BTreeMap::new();
        for line in lines {
            let mut of_owner: HashMap<String, usize> = HashMap::new();
            for seen in line.inside.into_iter().map(without_number) {
                let nth = of_owner.entry(seen.owner.clone()).and_modify(|nth| *nth += 1).or_default();
                inside.entry((seen.owner.clone(), *nth)).or_default().push(seen);
            }
        }
        let on_enough = inside.into_values().filter(|on_nodes| on_nodes.len() >= enough);
        let mut inside: Vec<Seen> = on_enough.map(merged).collect();
        inside.sort_by_key(|seen| std::cmp::Reverse(seen.admitted));
        let capacity = if inside.is_empty() { 0 } else { capacity };
        Ok(Line { capacity, inside, waiting: Vec::new() })
    }

    pub(super) async fn list(self: &Arc<Self>, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<Listed>> {
        let mut listed = Vec::new();
        let mut after = after.map(String::from);
        while listed.len() < limit {
            let (asked_prefix, asked_after, page) = (prefix.to_string(), after.clone(), limit.min(1000));
            let lists = self
                .majority_of(self.ask(move |shared, node| {
                    let (prefix, after) = (asked_prefix.clone(), asked_after.clone());
                    async move { shared.nodes[node].list(&prefix, after.as_deref(), page).await }
                }))
                .await?;
            let enough = self.enough(lists.len());
            // Beyond the end of a full page its node may know more.
            let full = lists.iter().filter(|list| list.len() >= page).filter_map(|list| list.last());
            let end: Option<String> = full.map(|last| last.name.key().to_string()).min();
            let mut found: BTreeMap<String, (usize, Listed)> = BTreeMap::new();
            for one in lists.into_iter().flatten() {
                if end.as_deref().is_some_and(|end| one.name.key() > end) || one.inside == 0 {
                    continue;
                }
                let (on, merged) = found.entry(one.name.key().to_string()).or_insert_with(|| (0, one.clone()));
                *on += 1;
                merged.inside = merged.inside.min(one.inside);
                merged.held = merged.held.max(one.held);
            }
            let found = found.into_values().filter(|(on, _)| *on >= enough);
            listed.extend(found.map(|(_, one)| Listed { waiting: 0, ..one }));
            match end {
                Some(end) => after = Some(end),
                None => break,
            }
        }
        listed.truncate(limit);
        Ok(listed)
    }

    /// A change is told by several nodes: it is passed on once, after a random pause, so that those who are told do not all
    /// try in the same moment and split the votes.
    pub(super) async fn watch(self: &Arc<Self>, scope: Scope) -> Result<BoxStream<'static, Hint>> {
        let mut opening: FuturesUnordered<_> = self
            .nodes
            .iter()
            .enumerate()
            .map(|(i, node)| {
                let scope = scope.clone();
                async move { (i, node.watch(scope).await) }
            })
            .collect();
        let (mut streams, mut errors) = (Vec::new(), Vec::new());
        while let Some((node, answer)) = opening.next().await {
            match answer {
                Ok(stream) => streams.push(stream),
                Err(error) => errors.push((node, error)),
            }
        }
        if streams.len() < self.majority() {
            return Err(self.too_few(streams.len(), &errors));
        }
        let state = (select_all(streams), Vec::<Hint>::new(), self.clock.clone());
        Ok(Box::pin(unfold(state, |(mut hints, mut pending, clock)| async move {
            if pending.is_empty() {
                pending.push(hints.next().await?);
                let pause = Duration::from_micros(fastrand::u64(500..8_000));
                clock.sleep_until(clock.now().after(pause)).await;
                while let Some(Some(hint)) = futures_util::FutureExt::now_or_never(hints.next()) {
                    if !pending.contains(&hint) {
                        pending.push(hint);
                    }
                }
            }
            let hint = pending.pop()?;
            Some((hint, (hints, pending, clock)))
        })))
    }
}

/// What the nodes say of one ticket, as one: it has been there since the first node had it, until the last one has it no
/// more, and it says of itself what most of them have (one that a change has not come to yet is outvoted).
fn merged(on_nodes: Vec<Seen>) -> Seen {
    let same = |one: &Seen, other: &Seen| (&one.reason, &one.value) == (&other.reason, &other.value);
    let votes = |one: &Seen| on_nodes.iter().filter(|other| same(one, other)).count();
    let said = on_nodes.iter().max_by_key(|one| votes(one)).expect("only what a node has is merged").clone();
    Seen {
        entered: on_nodes.iter().filter_map(|seen| seen.entered).max(),
        admitted: on_nodes.iter().filter_map(|seen| seen.admitted).max(),
        expires_in: on_nodes.iter().filter_map(|seen| seen.expires_in).max(),
        weight: on_nodes.iter().map(|seen| seen.weight).min().unwrap_or(said.weight),
        ..said
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Mode;

    fn seen(reason: &str, weight: u32, held: u64) -> Seen {
        Seen {
            token: None,
            mode: Mode::Shared,
            weight,
            host: "h".into(),
            pid: 1,
            identity: "h".into(),
            owner: "o".into(),
            reason: Some(reason.into()),
            value: None,
            entered: None,
            admitted: Some(Duration::from_secs(held)),
            expires_in: Some(Duration::from_secs(30 - held)),
        }
    }

    #[test]
    fn a_node_that_is_behind_is_outvoted() {
        for behind in 0..3 {
            let mut on_nodes = vec![seen("new", 1, 2), seen("new", 1, 3)];
            on_nodes.insert(behind, seen("old", 2, 4));
            let one = merged(on_nodes);
            assert_eq!((one.reason.as_deref(), one.weight), (Some("new"), 1), "behind: {behind}");
            assert_eq!(one.admitted, Some(Duration::from_secs(4)));
            assert_eq!(one.expires_in, Some(Duration::from_secs(28)));
        }
    }
}
