//! Expressions and types as text. Parentheses are in the tree, so none are added.
use super::Writer;
use crate::ast::{Expr, ExprKind, Step, Tag, TypeArg, TypeExpr, TypeExprKind, UnOp};
use crate::infer::sign_of;

impl Writer<'_> {
    fn list(&mut self, parts: &[Expr]) -> String {
        parts.iter().map(|p| self.expr(p)).collect::<Vec<_>>().join(", ")
    }

    /// A condition without the parentheses that are written anyway.
    pub(super) fn inner(&mut self, expr: &Expr) -> String {
        self.expr(expr)
    }

    pub(super) fn expr(&mut self, expr: &Expr) -> String {
        match &expr.kind {
            ExprKind::Binary(op, a, b) => format!("{} {} {}", self.expr(a), sign_of(*op), self.expr(b)),
            ExprKind::Unary(op, of) => {
                let sign = match op {
                    UnOp::Neg => "-",
                    UnOp::Not => "!",
                    UnOp::BitNot => "~",
                    UnOp::Deref => "*",
                    UnOp::AddrOf => "&",
                };
                let of = self.expr(of);
                // `- -a` is not `--a`.
                let gap = if of.starts_with(sign) && "-&".contains(sign) { " " } else { "" };
                format!("{sign}{gap}{of}")
            }
            ExprKind::Step(step, of) => {
                let of = self.expr(of);
                match step {
                    Step::PreInc => format!("++{of}"),
                    Step::PreDec => format!("--{of}"),
                    Step::PostInc => format!("{of}++"),
                    Step::PostDec => format!("{of}--"),
                }
            }
            ExprKind::Ternary(c, Some(a), b) => {
                format!("{} ? {} : {}", self.expr(c), self.expr(a), self.expr(b))
            }
            ExprKind::Ternary(c, None, b) => format!("{} ?: {}", self.expr(c), self.expr(b)),
            ExprKind::If(branch) => {
                let saved = std::mem::take(&mut self.out);
                self.if_chain(branch);
                std::mem::replace(&mut self.out, saved)
            }
            ExprKind::Block(block) => {
                let saved = std::mem::take(&mut self.out);
                self.block(block);
                std::mem::replace(&mut self.out, saved)
            }
            ExprKind::Paren(of) => format!("({})", self.expr(of)),
            ExprKind::Call(call) => {
                let bang = if call.bang { "!" } else { "" };
                let args = self.list(&call.args);
                format!("{}{bang}({args})", call.name.text)
            }
            ExprKind::Field(of, name) => {
                let of = self.expr(of);
                format!("{of}{}{}", if name.arrow { "->" } else { "." }, name.name.text)
            }
            ExprKind::Index(of, index) => format!("{}[{}]", self.expr(of), self.expr(index)),
            ExprKind::MapAt(map, key) => {
                let name = &map.name;
                let key = match &key.kind {
                    // Several keys are a tuple without parentheses.
                    ExprKind::Tuple(parts)
                        if parts.first().is_some_and(|p| p.span.start == key.span.start) =>
                    {
                        self.list(parts)
                    }
                    _ => self.expr(key),
                };
                format!("@{name}[{key}]")
            }
            ExprKind::Cast(ty, of) => format!("({}){}", self.type_expr(ty), self.expr(of)),
            ExprKind::Tuple(parts) if parts.len() == 1 => format!("({},)", self.expr(&parts[0])),
            ExprKind::Tuple(parts) => format!("({})", self.list(parts)),
            ExprKind::Record(parts) => {
                let parts: Vec<String> =
                    parts.iter().map(|(n, e)| format!("{}={}", n.text, self.expr(e))).collect();
                format!("({})", parts.join(", "))
            }
            ExprKind::Sizeof(arg) => format!("sizeof({})", self.type_arg(arg)),
            ExprKind::Typeinfo(arg) => format!("typeinfo({})", self.type_arg(arg)),
            ExprKind::Typeof(arg) => {
                let bare = !self.source(expr.span).starts_with("typeof");
                let arg = self.type_arg(arg);
                if bare { arg } else { format!("typeof({arg})") }
            }
            ExprKind::Offsetof(arg, path) => {
                let path: Vec<&str> = path.iter().map(|n| n.text.as_str()).collect();
                format!("offsetof({}, {})", self.type_arg(arg), path.join("."))
            }
            ExprKind::Comptime(of) => format!("comptime {}", self.expr(of)),
            // Numbers, strings and names stay as they were written.
            _ => self.source(expr.span).to_string(),
        }
    }

    fn type_arg(&mut self, arg: &TypeArg) -> String {
        match arg {
            TypeArg::Type(ty) => self.type_expr(ty),
            TypeArg::Expr(e) => self.expr(e),
        }
    }

    pub(super) fn type_expr(&mut self, ty: &TypeExpr) -> String {
        match &ty.kind {
            TypeExprKind::Name(name) => name.clone(),
            TypeExprKind::Tagged(tag, name) => {
                let word = match tag {
                    Tag::Struct => "struct",
                    Tag::Union => "union",
                    Tag::Enum => "enum",
                };
                format!("{word} {name}")
            }
            TypeExprKind::Pointer(of) => {
                let of = self.type_expr(of);
                let gap = if of.ends_with('*') { "" } else { " " };
                format!("{of}{gap}*")
            }
            TypeExprKind::Array(of, None) => format!("{}[]", self.type_expr(of)),
            TypeExprKind::Array(of, Some(len)) => format!("{}[{}]", self.type_expr(of), self.expr(len)),
            TypeExprKind::Typeof(arg) => format!("typeof({})", self.type_arg(arg)),
        }
    }
}
