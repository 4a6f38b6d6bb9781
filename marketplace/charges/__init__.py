"""Lines of money: what each hour of use costs, and what corrects it; they are only added."""
