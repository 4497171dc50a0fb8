//! Whether the hits of a script stand alone: none of them goes by what another one has left in a map.
//!
//! For:     budgets: of functions that are in by turns some hits are not seen, and whoever relies on their traces goes wrong.
//! State:   none.
//! Context: control.
//! Keeps:   A1 a map that is not named here has at a hit what it would have if no other hit had been.
//!          A2 what a probe of the controller makes of what hits have left counts as left by hits.
//! Checked: tests below; testkit `budget`.

use crate::Checked;
use crate::ast::{Block, Expr, ExprKind, MapId, Probe, Provider, Stmt, StmtKind};
use crate::visit::Visit;
use std::collections::BTreeSet;

/// Names of the maps, with `@`, that hits both fill and go by.
///
/// To fill is to assign, to add to, to aggregate; all else goes by what is there: a condition, an expression, `print`, `delete`.
///
/// # Context
/// Control.
pub fn shared_by_hits(checked: &Checked) -> Vec<String> {
    let uses: Vec<(bool, Uses)> =
        checked.probes.iter().map(|probe| (is_at_hits(probe), Uses::of(probe))).collect();
    let mut left: BTreeSet<MapId> = BTreeSet::new();
    loop {
        let is_from_hits = |(is_hit, uses): &&(bool, Uses)| *is_hit || !uses.reads.is_disjoint(&left);
        let now: BTreeSet<MapId> =
            uses.iter().filter(is_from_hits).flat_map(|(_, uses)| uses.writes.iter().copied()).collect();
        if now == left {
            break;
        }
        left = now;
    }
    let read: BTreeSet<MapId> =
        uses.iter().filter(|(is_hit, _)| *is_hit).flat_map(|(_, uses)| uses.reads.iter().copied()).collect();
    read.intersection(&left).map(|id| format!("@{}", checked.map(*id).name)).collect()
}

fn is_at_hits(probe: &Probe) -> bool {
    let is_hit = |provider| matches!(provider, Provider::Uprobe | Provider::Uretprobe | Provider::Usdt);
    probe.points.iter().any(|point| is_hit(point.provider))
}

/// What a probe does with maps.
#[derive(Debug, Default)]
struct Uses {
    reads: BTreeSet<MapId>,
    writes: BTreeSet<MapId>,
}

impl Uses {
    fn of(probe: &Probe) -> Uses {
        let (mut uses, mut probe) = (Uses::default(), probe.clone());
        if let Some(predicate) = &mut probe.predicate {
            uses.expr(predicate);
        }
        uses.block(&mut probe.body);
        uses
    }

    /// A place that gets a value; its key is read like any other expression.
    fn target(&mut self, target: &mut Expr) {
        match &mut target.kind {
            ExprKind::Map(map) => drop(self.writes.insert(map.id)),
            ExprKind::MapAt(map, key) => {
                self.writes.insert(map.id);
                self.expr(key);
            }
            _ => self.expr(target),
        }
    }

    /// An expression whose value nobody takes.
    fn unused(&mut self, e: &mut Expr) {
        match &mut e.kind {
            ExprKind::Step(_, target) => self.target(target),
            ExprKind::If(branch) => {
                self.expr(&mut branch.cond);
                self.block(&mut branch.then);
                branch.other.iter_mut().for_each(|other| self.block(other));
            }
            ExprKind::Block(block) => self.block(block),
            _ => self.expr(e),
        }
    }
}

impl Visit for Uses {
    fn expr(&mut self, e: &mut Expr) {
        match &mut e.kind {
            ExprKind::Map(map) | ExprKind::MapAt(map, _) => drop(self.reads.insert(map.id)),
            ExprKind::Step(_, target) => {
                let mut target = target.clone();
                self.target(&mut target);
            }
            // Their last expression is a value that is taken.
            ExprKind::If(branch) => {
                self.expr(&mut branch.cond);
                self.block_parts(&mut branch.then);
                return branch.other.iter_mut().for_each(|other| self.block_parts(other));
            }
            ExprKind::Block(block) => return self.block_parts(block),
            _ => {}
        }
        self.parts(e);
    }

    fn block(&mut self, block: &mut Block) {
        block.stmts.iter_mut().for_each(|stmt| self.stmt(stmt));
        block.value.iter_mut().for_each(|value| self.unused(value));
    }

    fn stmt(&mut self, stmt: &mut Stmt) {
        match &mut stmt.kind {
            StmtKind::Expr(e) | StmtKind::Discard(e) => self.unused(e),
            StmtKind::Assign { target, value, .. } => {
                self.expr(value);
                self.target(target);
            }
            _ => self.stmt_parts(stmt),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Nowhere, Request, check};

    fn shared(text: &str) -> Vec<String> {
        let mut request = Request::of(text);
        request.has_target = true;
        let checked = check(&request, &mut Nowhere).unwrap_or_else(|why| panic!("{text}: {}", why.show()));
        shared_by_hits(&checked)
    }

    #[test]
    fn what_hits_only_fill_is_nobodys_ground() {
        for text in [
            "uprobe:/x:a { @ = count(); }",
            "uprobe:/x:a /arg0 > 3/ { @[arg0, comm] = hist(arg1); @n++ }",
            "uprobe:/x:a { if (arg0 > 1) { @a[tid]++ } else { @b += arg0 } }",
            "uprobe:/x:a { @last[tid] = nsecs; } uretprobe:/x:a { @n = count(); }",
            "uprobe:/x:a { @ = count(); } interval:s:1 { print(@); clear(@); } end { if (@n > 2) { print(@) } @n = 0; }",
            "begin { @limit = 5; } uprobe:/x:a /arg0 > @limit/ { @ = sum(arg0); }",
            "uprobe:/x:a { $n = 3; while ($n > 0) { @[$n] = count(); $n--; } printf(\"%d\", arg0); }",
        ] {
            assert_eq!(shared(text), [] as [String; 0], "{text}");
        }
    }

    #[test]
    fn what_a_hit_goes_by_and_another_fills_is_named() {
        for (text, wanted) in [
            ("uprobe:/x:a { @t[tid] = nsecs; } uretprobe:/x:a { @ns = hist(nsecs - @t[tid]); }", "@t"),
            ("uprobe:/x:a { @t[tid] = nsecs; } uprobe:/x:b /@t[tid]/ { @n = count(); }", "@t"),
            ("uprobe:/x:a { @n = count(); } uprobe:/x:b { print(@n); }", "@n"),
            ("uprobe:/x:a { @n[tid] = 1; } uprobe:/x:b { delete(@n[tid]); }", "@n"),
            ("uprobe:/x:a { $n = @n++; printf(\"%d\", $n); }", "@n"),
            ("uprobe:/x:a /@n++ % 10 == 0/ { @ = count(); }", "@n"),
            ("uprobe:/x:a { @n = @n + 1; }", "@n"),
            ("uprobe:/x:a { @n++; @sum[@n] = count(); }", "@n"),
            ("uprobe:/x:a { @k[1] = 1; } uprobe:/x:b { for ($kv : @k) { @n = count(); } }", "@k"),
            // By way of the controller.
            ("uprobe:/x:a { @n++; } interval:s:1 { @on = @n; } uprobe:/x:b /@on/ { @ = count(); }", "@on"),
        ] {
            assert_eq!(shared(text), [wanted], "{text}");
        }
    }
}
