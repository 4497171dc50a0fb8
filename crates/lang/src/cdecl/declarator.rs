//! Declarators: what stands around a name.
use super::Declarations;
use crate::ast::Name;
use crate::syntax::Read;
use crate::types::{Int, Type};
use std::sync::Arc;

impl Declarations<'_, '_> {
    /// `*name[4]`, `(*name)(int)` ...: the name, its type, and an alignment asked for.
    pub(super) fn declarator(&mut self, base: Type) -> Read<(Option<Name>, Type, u32)> {
        self.cursor.nest(1)?;
        let result = self.declarator_inner(base);
        self.cursor.depth -= 1;
        result
    }

    fn declarator_inner(&mut self, base: Type) -> Read<(Option<Name>, Type, u32)> {
        let mut ty = base;
        let mut stars = 0;
        loop {
            if self.cursor.eat("*").is_some() {
                ty = Type::Pointer(Arc::new(ty));
                stars += 1;
                if stars > 16 {
                    return Err(self.cursor.unexpected("expected fewer levels of pointers"));
                }
            } else if matches!(self.cursor.peek_ident(), "const" | "volatile" | "restrict" | "__restrict") {
                let len = self.cursor.ident_len();
                self.cursor.take(len);
            } else {
                break;
            }
        }
        let aligned = self.attributes()?.aligned;
        if self.cursor.byte(0) == b'(' {
            return self.in_parentheses(ty, aligned);
        }
        let name = self.cursor.eat_ident();
        let ty = self.suffix(ty)?;
        Ok((name, ty, aligned))
    }

    /// `(*name)[4]` is a pointer to an array, `(*name)(int)` to a function.
    fn in_parentheses(&mut self, outer: Type, aligned: u32) -> Read<(Option<Name>, Type, u32)> {
        self.cursor.expect("(", "")?;
        let (name, inner, _) = self.declarator(Type::None)?;
        self.cursor.expect(")", "after a declarator")?;
        let suffixed = self.suffix(outer)?;
        Ok((name, put_in(inner, suffixed), aligned))
    }

    /// `[4][2]` or `(parameters)` after a name.
    fn suffix(&mut self, ty: Type) -> Read<Type> {
        if self.cursor.byte(0) == b'(' {
            self.skip_parameters()?;
            return Ok(Type::Void);
        }
        let mut lens = Vec::new();
        while self.cursor.eat("[").is_some() {
            let len = if self.cursor.byte(0) == b']' { 0 } else { self.constant(1 << 24)? };
            if len < 0 || lens.len() > 8 {
                return Err(self.cursor.unexpected("expected a size that is not negative"));
            }
            lens.push(len as u32);
            self.cursor.expect("]", "after an array's size")?;
        }
        let mut ty = ty;
        for (i, len) in lens.iter().rev().enumerate() {
            ty = match ty {
                // Arrays of `char` are strings.
                Type::Int(Int { size: 1, signed: true, .. }) if i == 0 && *len > 0 => Type::Str(*len),
                ty => Type::Array(Arc::new(ty), *len),
            };
        }
        Ok(ty)
    }

    fn skip_parameters(&mut self) -> Read<()> {
        let mut depth = 0usize;
        while !self.cursor.at_end() {
            match self.cursor.byte(0) {
                b'(' => depth += 1,
                b')' => depth -= 1,
                _ => {}
            }
            let len = self.cursor.peek().map_or(1, char::len_utf8);
            self.cursor.take(len);
            if depth == 0 {
                return Ok(());
            }
        }
        Err(self.cursor.unexpected("expected ) after parameters"))
    }
}

/// `shape` with `Type::None` in it replaced.
fn put_in(shape: Type, ty: Type) -> Type {
    match shape {
        Type::None => ty,
        Type::Pointer(of) => Type::Pointer(Arc::new(put_in((*of).clone(), ty))),
        Type::Array(of, n) => Type::Array(Arc::new(put_in((*of).clone(), ty)), n),
        other => other,
    }
}
