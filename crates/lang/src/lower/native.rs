//! Probes that are a count or a histogram and nothing else.
//!
//! For:     whoever attaches: such a probe needs no program, a count in the trampoline does it.
//! State:   none.
//! Context: control.
//! Keeps:   N1 what is said of a probe is all that its program does.
//!          N2 its map is used by no other program at hits, but in the same way: what is counted aside is taken in before the
//!             controller looks, and a hit does not look.
//! Checked: tests below; testkit `scripts`.

use crate::arch::{ARGUMENTS, GO_ARGUMENTS};
use crate::ast::{AttachPoint, Expr, ExprKind, MapId, MapRef, Probe, Provider, StmtKind};
use crate::program::Native;
use crate::types::{Agg, Type};
use crate::visit::Visit;
use crate::{Builtin, Checked};

/// What a probe is besides a program.
pub fn native(checked: &Checked, probe: &Probe, point: &AttachPoint) -> Option<Native> {
    let (map, native) = alone(checked, probe)?;
    let suits = matches!(
        (point.provider, &native),
        (Provider::Uprobe, _) | (Provider::Uretprobe, Native::Count { .. })
    );
    let others = checked.probes.iter().filter(|other| other.points.iter().any(is_at_hits));
    let is_used = |other: &Probe| alone(checked, other).is_none_or(|(of, _)| of != map) && names(other, map);
    (suits && !others.into_iter().any(is_used)).then_some(native)
}

fn is_at_hits(point: &AttachPoint) -> bool {
    use Provider as P;
    !matches!(point.provider, P::Begin | P::End | P::Test | P::Bench | P::SelfSignal | P::Interval)
}

/// The map that a probe counts into, if it does nothing else.
fn alone(checked: &Checked, probe: &Probe) -> Option<(MapId, Native)> {
    let ([stmt], None, None) = (probe.body.stmts.as_slice(), &probe.predicate, &probe.body.value) else {
        return None;
    };
    let StmtKind::Assign { target, op: None, value } = &stmt.kind else { return None };
    let ExprKind::Map(MapRef { id, .. }) = &target.kind else { return None };
    let (ExprKind::Builtin(builtin, args), Type::Agg(agg)) = (&value.kind, &checked.map(*id).value) else {
        return None;
    };
    let map = id.0 as usize;
    let native = match (builtin, args.as_slice(), agg) {
        (Builtin::Count, [], Agg::Count) => Native::Count { map },
        (Builtin::Hist, [Expr { kind: ExprKind::Arg(n), .. }, ..], agg @ Agg::Hist { bits: 0 }) => {
            let sites = || probe.points.iter().flat_map(|point| point.sites.iter());
            let registers: &[i16] = match sites().any(|site| site.is_go) {
                false => &ARGUMENTS,
                true if sites().all(|site| site.is_go) => &GO_ARGUMENTS,
                true => return None,
            };
            let register = u32::try_from(*registers.get(*n as usize)?).ok()?;
            Native::Histogram { map, agg: *agg, register }
        }
        _ => return None,
    };
    Some((*id, native))
}

/// Whether a probe has to do with a map.
fn names(probe: &Probe, map: MapId) -> bool {
    struct Find(MapId, bool);
    impl Visit for Find {
        fn expr(&mut self, e: &mut Expr) {
            if let ExprKind::Map(of) | ExprKind::MapAt(of, _) = &e.kind {
                self.1 |= of.id == self.0;
            }
            self.parts(e);
        }
    }
    let (mut find, mut probe) = (Find(map, false), probe.clone());
    probe.predicate.iter_mut().for_each(|e| find.expr(e));
    find.block(&mut probe.body);
    find.1
}
