"""Plans of equal blocks, such as those of a language model: millions of them by closed form, arrays over plans."""
