//! `count()` and its like: what a map keeps.
use super::Infer;
use super::promote::read_as;
use crate::ast::{Expr, ExprKind};
use crate::builtin::Builtin;
use crate::source::Span;
use crate::types::{Agg, Int, SeriesKind, Type};

/// Whether a function's value goes into a map only.
pub(super) fn is(function: Builtin) -> bool {
    matches!(
        function,
        Builtin::Count
            | Builtin::Sum
            | Builtin::Min
            | Builtin::Max
            | Builtin::Avg
            | Builtin::Stats
            | Builtin::Hist
            | Builtin::Lhist
            | Builtin::Tseries
    )
}

impl Infer<'_> {
    pub(super) fn aggregation(&mut self, function: Builtin, args: &[Expr], span: Span) -> Type {
        let signed = match args.first() {
            Some(value) => match self.integer_signed(function, value) {
                Some(signed) => signed,
                None => return Type::None,
            },
            None => false,
        };
        let agg = match function {
            Builtin::Count => Some(Agg::Count),
            Builtin::Sum => Some(Agg::Sum { signed }),
            Builtin::Min => Some(Agg::Min { signed }),
            Builtin::Max => Some(Agg::Max { signed }),
            Builtin::Avg => Some(Agg::Avg { signed }),
            Builtin::Stats => Some(Agg::Stats { signed }),
            Builtin::Hist => self.hist(args, span),
            Builtin::Lhist => self.lhist(args, span),
            _ => self.tseries(args, signed, span),
        };
        agg.map_or(Type::None, Type::Agg)
    }

    fn integer_signed(&mut self, function: Builtin, value: &Expr) -> Option<bool> {
        let ty = self.expr(value);
        match read_as(&ty).unwrap_or(ty) {
            Type::Int(Int { signed, .. }) => Some(signed),
            Type::Enum(_) | Type::Bool => Some(false),
            Type::None => None,
            other => {
                let shown = self.show(&other);
                let message =
                    format!("{}() only supports integer arguments ({shown} provided)", function.name());
                self.error(value.span, message);
                None
            }
        }
    }

    fn constant(&mut self, function: &str, arg: &Expr) -> Option<i128> {
        self.expr(arg);
        match arg.kind {
            ExprKind::Int(n) => Some(n),
            _ => {
                self.error(arg.span, format!("{function}() expects an integer literal here"));
                None
            }
        }
    }

    fn hist(&mut self, args: &[Expr], span: Span) -> Option<Agg> {
        let bits = match args.get(1) {
            Some(bits) => self.constant("hist", bits)?,
            None => 0,
        };
        if !(0..=5).contains(&bits) {
            self.error(span, format!("hist: bits {bits} must be 0..5"));
            return None;
        }
        Some(Agg::Hist { bits: bits as u8 })
    }

    fn lhist(&mut self, args: &[Expr], span: Span) -> Option<Agg> {
        let mut numbers = [0i64; 3];
        for (number, arg) in numbers.iter_mut().zip(args.get(1..).unwrap_or_default()) {
            let Ok(value) = i64::try_from(self.constant("lhist", arg)?) else {
                self.error(arg.span, "lhist() takes numbers of 64 bits with a sign");
                return None;
            };
            *number = value;
        }
        let [min, max, step] = numbers;
        if step <= 0 {
            self.error(span, format!("lhist() step must be >= 1 ({step} provided)"));
            return None;
        }
        if min > max {
            self.error(span, format!("lhist() min must be less than max (provided min {min} and max {max})"));
            return None;
        }
        let buckets = (i128::from(max) - i128::from(min)) / i128::from(step);
        if i128::from(max) - i128::from(min) < i128::from(step) {
            self.error(
                span,
                format!(
                    "lhist() step is too large for the given range (provided step {step} for range {})",
                    max - min
                ),
            );
            return None;
        }
        if buckets > 1000 {
            self.error(span, format!("lhist() too many buckets, must be <= 1000 (would need {buckets})"));
            return None;
        }
        Some(Agg::Lhist { min, max, step })
    }

    fn tseries(&mut self, args: &[Expr], signed: bool, span: Span) -> Option<Agg> {
        let interval = self.constant("tseries", args.get(1)?)?;
        let num = self.constant("tseries", args.get(2)?)?;
        let how = match args.get(3) {
            None => SeriesKind::Last,
            Some(how) => {
                self.expr(how);
                let ExprKind::Str(word) = &how.kind else {
                    self.error(how.span, "tseries() expects a string literal as its fourth argument");
                    return None;
                };
                match word.as_slice() {
                    b"avg" => SeriesKind::Avg,
                    b"max" => SeriesKind::Max,
                    b"min" => SeriesKind::Min,
                    b"sum" => SeriesKind::Sum,
                    _ => {
                        let shown = String::from_utf8_lossy(word).into_owned();
                        self.error(how.span, format!("tseries() expects one of the following aggregation functions: avg, max, min, sum (\"{shown}\" provided)"));
                        return None;
                    }
                }
            }
        };
        if interval < 1 || interval > i128::from(i64::MAX) {
            self.error(span, format!("tseries() interval_ns must be >= 1 ({interval} provided)"));
            return None;
        }
        if !(1..=1_000_000).contains(&num) {
            self.error(span, format!("tseries() num_intervals must be >= 1 and <= 1000000 ({num} provided)"));
            return None;
        }
        Some(Agg::Tseries { interval: interval as u64, num: num as u32, how, signed })
    }
}
