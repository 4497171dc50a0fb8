//! `@x = count()` and its like.
//!
//! For:     the lowering.
//! State:   none of its own.
//! Context: control.
//! Keeps:   what is aggregated is a helper's matter: each engine's own way to be exact.
//! Checked: tests/scripts.rs.

use super::build::{Build, Done};
use super::code::r;
use super::expr::Key;
use crate::Builtin;
use crate::ast::{Expr, ExprKind, MapId};
use crate::types::Agg;
use bpf::Operand;
use bpf::helper;

impl Build<'_, '_> {
    /// Takes a value into a map's aggregate.
    pub fn aggregate(
        &mut self,
        map: MapId,
        key: Option<&Expr>,
        agg: Agg,
        value: &Expr,
        target: &Expr,
    ) -> Done {
        use Builtin as B;
        let args = match &value.kind {
            ExprKind::Builtin(
                B::Count | B::Sum | B::Min | B::Max | B::Avg | B::Stats | B::Hist | B::Lhist | B::Tseries,
                args,
            ) => args.as_slice(),
            _ => {
                return self
                    .refuse(value.span, "a map of aggregates takes count(), sum() and their like only");
            }
        };
        let number = match args.first() {
            Some(value) => {
                self.scalar(value)?;
                Some(self.keep())
            }
            None => None,
        };
        let key = if matches!(agg, Agg::Tseries { .. }) {
            let key = Key::At(self.key_at(map, key)?);
            self.time_of_series()?;
            self.code.mov(r(4), r(0));
            key
        } else {
            let key = self.key(map, key)?;
            self.code.constant(r(4), 0);
            key
        };
        self.map_and_key(map, key);
        match number {
            Some(number) => self.kept(number, r(3)),
            None => self.code.constant(r(3), 1),
        }
        self.code.call(key.of(helper::AGGREGATE));
        self.told_if_full(target);
        Ok(())
    }

    /// r0 = the time that a series goes by: atomic time, or a map that the tests name.
    fn time_of_series(&mut self) -> Done {
        let Some(name) = self.up.options.time_map.as_deref() else {
            self.code.call(helper::KTIME_GET_TAI_NS);
            return Ok(());
        };
        let wanted = name.trim_start_matches('@');
        let Some(at) = self.up.checked.maps.iter().position(|map| map.name == wanted) else {
            self.code.call(helper::KTIME_GET_TAI_NS);
            return Ok(());
        };
        let map = MapId(at as u32);
        let key = self.key(map, None)?;
        self.map_and_key(map, key);
        self.code.call(key.of(helper::MAP_LOOKUP));
        let none = self.code.label();
        self.code.jump(bpf::Cond::Eq, r(0), Operand::Imm(0), none);
        self.code.load(bpf::Size::Dw, false, r(0), r(0), 0);
        self.code.bind(none);
        Ok(())
    }
}
