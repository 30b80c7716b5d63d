// What scrolls sideways can be reached by the keyboard.
document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code").forEach((part) => {
  if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
});
