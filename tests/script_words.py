"""Real words in several scripts, and lines made of them: the same every time."""

from __future__ import annotations

from corpora import pick

WORDS = {
    "german": "Straße Übung größer über Käse Mädchen schön fährt Bücher Öl und nicht Wörterbuch Zürich daß Äpfel",
    "french": "être garçon naïve où déjà Noël œuvre ça été élève forêt château hôtel l'été aujourd'hui peut-être",
    "vietnamese": "má mà mạ mả mã ma tiếng Việt người được không những đường phố trường học nước Đà Nẵng",
    "russian": "Москва столица ёлка йод русский язык чай объявление ещё человек жизнь Россия что который",
    "greek": "Ελλάδα γλώσσα άνθρωπος θάλασσα ο ήλιος και Αθήνα ώρα ΐ ευχαριστώ",
    "arabic": "اللغة العربية كِتَاب مدرسة بيت السلام عليكم شكراً أهلاً الإنسان",
    "persian": "می‌خواهم خانه‌ها کتاب‌ها نمی‌دانم فارسی زبان",
    "hebrew": "שלום עולם ירושלים בֵּית סֵפֶר ספר",
    "hindi": "हिन्दी नमस्ते दुनिया भारत विद्यार्थी किताब क्षत्रिय ज्ञान की है में और",
    "tamil": "தமிழ் வணக்கம் மொழி நன்றி பள்ளி",
    "korean": "한국어 안녕하세요 대한민국 사람 학교에서 물을 마셨습니다 좋아요 뷁",
    "amharic": "አማርኛ ሰላም ኢትዮጵያ ትምህርት",
    "thai": "ที่นี่ ภาษาไทย ประเทศ สวัสดี น้ำ โรงเรียน เด็ก กำลัง เขียน หนังสือ",
    "chinese": "中文 北京 我们 学习 语言 模型 今天 天气 很好 的 是 在 了",
    "japanese": "日本語 東京 が パ ガラス ひらがな カタカナ です ます 食べる コンピューター ヴァイオリン",
    "khmer": "ភាសា ខ្មែរ កម្ពុជា ជំរាបសួរ",
    "lao": "ພາສາ ລາວ ສະບາຍດີ ປະເທດ",
    "burmese": "မြန်မာ ဘာသာ မင်္ဂလာပါ ကျေးဇူး",
    "tibetan": "བོད་ཡིག་ བཀྲ་ཤིས་ བདེ་ལེགས་ སློབ་གྲྭ་",
}
SPACELESS = ("thai", "chinese", "japanese", "khmer", "lao", "burmese", "tibetan")
_ENDS = {"chinese": "，。！？", "japanese": "、。！", "hindi": "।?", "arabic": "،؟.", "burmese": "၊။", "khmer": "។៕"}


def line(language: str, *address: object) -> str:
    """A line of words with punctuation, numbers and now and then a Latin word."""
    words, glue = WORDS[language].split(), "" if language in SPACELESS else " "
    some = [words[pick(language, *address, at) % len(words)] for at in range(3 + pick(*address) % 12)]
    if pick(language, *address, "latin") % 5 == 0:
        some.insert(1, f"Python{pick(*address) % 4}")
    if pick(language, *address, "number") % 4 == 0:
        some.append(str(pick(language, *address) % 100_000))
    ends = _ENDS.get(language, ".!?")
    text = glue.join(some) + ends[pick(*address, "end") % len(ends)]
    return text if pick(language, *address, "space") % 3 else text.replace(some[1], " " + some[1], 1).strip()


def lines(language: str, count: int, seed: object = 0) -> list[str]:
    return [line(language, seed, number) for number in range(count)]
