"""Plans of equal blocks as Calculon has them: millions of them by closed form, arrays over plans."""
