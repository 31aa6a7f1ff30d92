// The search lists the pages that contain all words.
const field = document.getElementById('search'), found = document.getElementById('found');
let pages;
field.addEventListener('input', async () => {
  pages ??= fetch(field.dataset.index).then((answer) => answer.json());
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = words.length ? (await pages).filter((page) => words.every((word) => (page.title.toLowerCase() + page.text).includes(word))) : [];
  found.replaceChildren(...matches.slice(0, 15).map((page) => {
    const item = document.createElement('li'), link = document.createElement('a');
    link.href = field.dataset.root + page.url;
    link.textContent = page.title;
    item.append(link);
    return item;
  }));
});
